"""The code of the chapter `interaction`."""
