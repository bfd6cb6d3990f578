"""The Run Lab: published training runs, predicted next to what was printed, with one thing changed."""
