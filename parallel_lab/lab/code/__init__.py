"""A lab's setting as programs for MindSpore, PyTorch and JAX, and programs' lines as a lab's setting."""
