"""The code of the crowd: many tokens as a law, its equation and its limit, which the page of evidence `crowd` shows."""
