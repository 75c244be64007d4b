"""The code of the chapter `diffusion`."""
