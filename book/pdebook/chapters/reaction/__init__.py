"""The code of the chapter `reaction`."""
