"""The Pipeline Lab: a schedule that can be chosen or drawn, its clock and memory, and worker processes that run it."""
