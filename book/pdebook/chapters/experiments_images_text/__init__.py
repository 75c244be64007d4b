"""The code of the chapter `experiments_images_text`."""
