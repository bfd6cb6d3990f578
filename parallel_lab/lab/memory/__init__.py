"""The Memory Lab: what each rank holds during a step, and what optimizer parallel makes of it."""
