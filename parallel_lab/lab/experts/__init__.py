"""The Expert Lab: which expert works on which token, how unequal that is, and what travels for it."""
