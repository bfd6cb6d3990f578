#!/bin/bash
# The quickstart on 8 ranks, in the background: the log is device/train.log, rank K's checkpoints are in device/K, its graphs in saved_graph/rank_K.
#
#   bash run_with_mpi.sh
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/environment.sh"

rm -rf device saved_graph
mkdir device
cp "$here/quickstart.py" device/
cd device
"${MPIRUN[@]}" -n 8 "$PYTHON" quickstart.py > train.log 2>&1 &
echo "training runs in the background; its log: device/train.log"
