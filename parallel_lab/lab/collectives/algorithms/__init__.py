"""Collective algorithms by name (ring, tree, recursive doubling, direct): lists of sends that can be counted, timed,
stepped through and run.
"""
