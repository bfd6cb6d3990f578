"""Benchmarks that a user can run: `parallel-lab bench`. Ratios of medians of one run, in turns, with a check of the
values beside every speed.
"""
