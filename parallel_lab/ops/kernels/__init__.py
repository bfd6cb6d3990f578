"""Arithmetic on plain arrays that operators share: windows, convolution, pooling, threads. Knows no sharding."""
