"""The command `parallel-lab`, its benchmarks, the doctor, and the magics of a notebook."""
