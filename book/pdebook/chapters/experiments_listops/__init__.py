"""The code of the chapter `experiments_listops`."""
