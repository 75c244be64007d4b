"""The terms of the master equation, one symbol a file; each is a rate du/dt."""
