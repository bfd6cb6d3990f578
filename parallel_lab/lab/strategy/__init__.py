"""The Strategy Lab: operators, strategies, slices and messages of one network."""
