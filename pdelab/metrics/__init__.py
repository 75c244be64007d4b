"""Metrics: numbers read off states, attention maps and rates; they take tensors, Trajectories and equations."""
