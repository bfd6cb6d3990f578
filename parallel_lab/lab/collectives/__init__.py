"""The Collective Stepper: collective algorithms round by round, and the puzzle "all-reduce menu"."""
