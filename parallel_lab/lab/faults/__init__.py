"""Faults on purpose: a small training on real ranks, one thing wrong with it, and what is told and what is not."""

from .clinic import FAULTS, Diagnosis, inject, table

__all__ = ["FAULTS", "Diagnosis", "inject", "table"]
