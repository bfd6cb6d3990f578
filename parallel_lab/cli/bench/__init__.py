"""`parallel-lab bench`: ratios of medians of one run, in turns, with values checked beside every speed."""
