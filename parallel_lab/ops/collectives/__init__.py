"""Operators that a script calls by hand to communicate: AllReduce and its like, Send, Receive, NeighborExchange."""
