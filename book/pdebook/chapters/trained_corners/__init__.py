"""The experiments with and without residual connections and LayerNorm, which the chapter `residual` shows."""
