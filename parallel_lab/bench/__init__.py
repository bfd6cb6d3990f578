"""Benchmarks that a user can run: `parallel-lab bench training`. Ratios of medians taken in one run, with an equality check beside every speed."""
