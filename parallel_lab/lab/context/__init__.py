"""The Context Lab: which rank computes which pair of query and key, and what travels for it."""
