"""Programs of PyTorch, JAX and HyperParallel, read and explained, never run: see `explanation.explain`."""
