"""The Rosetta Lab: one layout of a tensor in the notations of MindSpore, PyTorch, JAX and the scaling book."""
