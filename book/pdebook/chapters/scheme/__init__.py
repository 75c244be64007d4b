"""The code of the chapter `scheme`."""
