"""Layers: Cells with parameters, activations, normalisation, losses."""
