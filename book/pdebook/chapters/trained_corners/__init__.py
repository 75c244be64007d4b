"""The code of the chapter `trained_corners`."""
