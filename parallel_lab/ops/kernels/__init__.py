"""Arithmetic on plain arrays that several operators share: windows, convolution, pooling, threads. Nothing here knows
of sharding.
"""
