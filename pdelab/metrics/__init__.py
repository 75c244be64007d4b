"""Metrics: numbers read off states and attention maps; they take tensors and Trajectories, never models."""
