"""What estimators see: one network, three curves."""
