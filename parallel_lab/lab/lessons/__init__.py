"""One module per lesson, with all that its notebook uses beside `parallel_lab` itself."""
