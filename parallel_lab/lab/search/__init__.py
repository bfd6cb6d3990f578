"""The Search Lab: strategies that a search finds, what else there was, and what would make another one win."""
