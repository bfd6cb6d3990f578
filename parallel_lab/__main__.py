"""`python -m parallel_lab`: the command `parallel-lab`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
