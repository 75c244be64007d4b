"""The code of the experiment `bottleneck`, which the chapter `coupled_layers` shows."""
