"""A class: `hand_in` at the end of a notebook, and what a class has handed in on one page (`parallel-lab wall`); the
lessons as an nbgrader course (`parallel-lab course`); a live class (`join` in notebooks, `parallel-lab wall --live`).
"""

from .items import analysed, class_csv
from .joined import join
from .roll import hand_in, read_class
from .wall import wall_page, wall_text

__all__ = ["analysed", "class_csv", "hand_in", "join", "read_class", "wall_page", "wall_text"]
