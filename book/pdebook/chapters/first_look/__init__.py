"""The code of the chapter `first_look`."""
