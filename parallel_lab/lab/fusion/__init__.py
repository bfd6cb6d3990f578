"""The Fusion Lab: which gradients share a message, and what hides behind backward."""
