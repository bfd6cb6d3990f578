"""Families of operators: declarations only. Importing one registers its operators."""

from . import flash_attention, gamma_functions  # noqa: F401
