"""With the folder above this one on PYTHONPATH, `import hyper_parallel` gives `parallel_lab.hyper_parallel`."""

import sys
from pathlib import Path

# a test runner that looks at every file meets this one under another name, and must not change the import
if __name__ == "hyper_parallel":
    sys.path.append(str(Path(__file__).resolve().parents[4]))  # last: a checkout that is not installed
    from parallel_lab.hyper_parallel._pages import stand_in

    stand_in()
