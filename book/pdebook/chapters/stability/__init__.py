"""The code of the chapter `stability`."""
