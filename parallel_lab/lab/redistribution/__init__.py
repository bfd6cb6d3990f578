"""The Redistribution Lab: how a tensor gets from one layout to another."""
