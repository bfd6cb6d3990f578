"""Grading submissions without a server: each in fresh processes, kept in bounds, judged from outside.

The process that judges (`grader.py`) never runs a line of a submission; the one that does (`pupil.py`) has no grader in
it and answers calls with plain data (`wire.py`). `confine.py` bounds what it may use, `marks.py` makes the table.
"""
