"""The code of the chapter `residual`."""
