#!/bin/bash
# The lesson on communication fusion on 8 ranks; what rank K prints is in log_output/1/rank.K/stdout.
#
#   DATA_PATH=folder with MNIST's files  bash run.sh
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/environment.sh"
export DATA_PATH=${DATA_PATH:?is the folder with the files of MNIST}

"${MPIRUN[@]}" -n 8 --output-filename log_output --merge-stderr-to-stdout "$PYTHON" "$here/comm_fusion.py"
