"""The code of two experiments on estimators of information, which the chapter `information` shows."""
