"""The code of the chapter `clusters`."""
