"""Who gives operators their strategies in auto_parallel mode, as `search_mode` says.

sharding_propagation     spreads given strategies to the neighbours (`propagation.py`)
dynamic_programming      the least of MindSpore's costs, computation and communication (`mindspore_model.py`), found
                         by taking out one operator after the other (`eliminate.py`)
recursive_programming    halves every product again and again (`recursive.py`)

problem = mindspore_problem(graph, config)     what there is to choose, in numbers (`problem.py`)
best = eliminate(problem)                      best.chosen, best.cost, best.steps
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .eliminate import Elimination, Solution, eliminate
from .exact import branch_and_bound, exact, integer_program
from .mindspore_model import mindspore_problem
from .problem import Choice, Pair, Problem, Term
from .propagation import propagate_strategies
from .recursive import Halving, recursive_search
from .search_modes import search_strategies
from .strategy_search import Candidate, Found, search
from .time_model import time_problem
