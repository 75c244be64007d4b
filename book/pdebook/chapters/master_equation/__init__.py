"""The code of the chapter `master_equation`."""
