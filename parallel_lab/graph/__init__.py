"""From a Cell to a program: trace it into a `Graph`, then let pure passes turn that into the instructions of a plan."""
