"""Tensor and Parameter: arrays that remember how they were made, their arithmetic and gradients."""
