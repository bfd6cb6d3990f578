"""With the folder above this one on PYTHONPATH, `import mindspore` gives `parallel_lab.mindspore`."""

import sys
from pathlib import Path

# a test runner that looks at every file meets this one under another name, and must not change `import mindspore`
if __name__ == "mindspore":
    try:
        from parallel_lab.mindspore._modules import stand_in
    except ModuleNotFoundError as error:
        if error.name != "parallel_lab":
            raise
        # run from a checkout that is not installed
        sys.path.append(str(Path(__file__).resolve().parents[4]))
        from parallel_lab.mindspore._modules import stand_in

    stand_in()
