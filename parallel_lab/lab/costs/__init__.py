"""The Cost Lab: when which algorithm of a collective is the fastest."""
