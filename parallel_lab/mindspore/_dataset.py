"""`pl.dataset`: datasets with all operations on pictures."""

# ruff: noqa: F403 - imported for others: this is a public face

import parallel_lab.mindspore._vision as _pictures

from ..train.dataset import *

vision = _pictures
