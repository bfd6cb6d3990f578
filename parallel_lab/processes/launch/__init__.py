"""Starting ranks on this machine: one process per rank of a user's script, watched until all have ended.

processes    start, watch, end; who failed first       console     log files and the merged, tagged console
rank_main    the first lines of a rank's process        msrun       the arguments of MindSpore's launcher
environment  what the processes of ranks find           over_mpi    the same through mpirun

    outcome = launch(LaunchSpec(("train.py",), 8), Console(8))
"""

from ...base.system import IN_BROWSER
from ..without import absent

if IN_BROWSER:
    globals().update(absent("Console", "LaunchSpec", "Outcome", "launch", "launch_over_mpi", "mpirun_logs"))
    globals().update(absent("as_mindspore_folder"))
else:
    from .console import Console, mpirun_logs
    from .environment import as_mindspore_folder
    from .over_mpi import launch_over_mpi
    from .processes import LaunchSpec, Outcome, launch

__all__ = ["Console", "LaunchSpec", "Outcome", "as_mindspore_folder", "launch", "launch_over_mpi", "mpirun_logs"]
