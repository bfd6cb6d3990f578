"""A class: `hand_in` at the end of a notebook, what a class has handed in on one page (`parallel-lab wall`), and
the lessons as an nbgrader course (`parallel-lab course`).
"""

from .roll import hand_in, read_class
from .wall import wall_page

__all__ = ["hand_in", "read_class", "wall_page"]
