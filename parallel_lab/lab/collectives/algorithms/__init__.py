"""Collective algorithms by name: lists of sends that can be counted, timed, stepped through and run."""
