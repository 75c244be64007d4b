"""The code of the chapter `estimators`."""
