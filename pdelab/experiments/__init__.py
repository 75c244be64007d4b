"""One file per result of the papers; each has run(seed) -> Result."""
