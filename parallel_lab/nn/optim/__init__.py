"""Optimizers, learning-rate schedules, loss scaling, clipping: what happens to gradients after backward."""
