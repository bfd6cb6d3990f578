"""`pl.dataset`: datasets with all samplers and operations on pictures."""

# ruff: noqa: F403 - imported for others: this is a public face

import parallel_lab.mindspore._vision as _pictures

from ..train.dataset import *
from ._samplers import *

vision = _pictures
