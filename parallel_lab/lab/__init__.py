"""Headless labs: plain Python models with `snapshot()`, and their forms as text and as pages of their own."""
