"""The code of the chapter `information`."""
