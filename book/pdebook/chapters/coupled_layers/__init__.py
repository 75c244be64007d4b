"""The code of the chapter `coupled_layers`."""
