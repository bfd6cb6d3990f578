"""The command `parallel-lab`, the doctor, and the magics of a notebook."""
