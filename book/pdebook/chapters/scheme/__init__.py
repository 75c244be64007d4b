"""The code of the numerical scheme of P1, its stability and its error, which the chapter `scheme` shows."""
