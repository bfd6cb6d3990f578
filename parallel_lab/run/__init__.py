"""Running plans: one interpreter, several answerers (simulator, shared-memory processes, MPI)."""
