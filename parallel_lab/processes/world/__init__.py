"""How processes that were started one by one become the ranks of one world."""
