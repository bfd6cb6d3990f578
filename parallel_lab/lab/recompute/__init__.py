"""The Recompute Lab: which layers of a chain are kept, which are recomputed, and what memory and work that takes."""
