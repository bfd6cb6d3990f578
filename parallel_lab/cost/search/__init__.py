"""Who gives operators their strategies in auto_parallel mode, as `search_mode` says.

    sharding_propagation     spreads given strategies to the neighbours (`propagation.py`)
    dynamic_programming      the least of MindSpore's costs, computation and communication (`mindspore_model.py`), found
                             by taking out one operator after the other (`eliminate.py`)
    recursive_programming    halves every product again and again (`recursive.py`)

Besides them a search in seconds, proved to be the least, that says what else there was (`strategy_search.py`):

    found = search(net, x, label, loss=loss, device_num=8, cluster="two_nodes")
    print(found.text())

Those that make a sum least see numbers only: a `Problem`, made by MindSpore's model of costs, by that of the plan's
own seconds (`time_model.py`), or by Alpa's on a mesh of devices (`alpa_model.py`).
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .alpa_model import Mesh, alpa_problem
from .eliminate import Elimination, Solution, eliminate, pareto
from .exact import Improvement, branch_and_bound, exact, integer_program
from .mindspore_model import mindspore_problem
from .problem import Choice, Pair, Problem, Term
from .propagation import propagate_strategies, settling_order
from .recursive import Halving, recursive_search
from .search_modes import search_strategies
from .strategy_search import Candidate, Found, search
from .time_model import time_problem
from .walks import Compared
