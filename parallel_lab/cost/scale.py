"""The planner under its former name: `parallel_lab.cost.scale` has the public names of `parallel_lab.cost.planner`."""

# ruff: noqa: F403 - imported for others: this is a public face

from .planner import *
