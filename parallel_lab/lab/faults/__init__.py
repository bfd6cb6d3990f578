"""Faults on purpose: a small training on real ranks with one thing wrong: what is reported, and what goes unnoticed."""

from .clinic import FAULTS, Diagnosis, inject, table

__all__ = ["FAULTS", "Diagnosis", "inject", "table"]
