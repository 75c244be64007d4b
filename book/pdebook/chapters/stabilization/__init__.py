"""The code of the chapter `stabilization`."""
