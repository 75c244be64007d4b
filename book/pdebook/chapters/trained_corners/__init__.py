"""With and without a skip, with and without LayerNorm: gradients of random matrices, and trained models."""
