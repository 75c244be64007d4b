"""The code of the chapter `continuum_limit`."""
