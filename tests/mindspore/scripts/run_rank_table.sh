#!/bin/bash
# ResNet-50 on 2, 4 or 8 devices of one machine, one process each, which find each other by a rank table. Device K's process runs in the folder deviceK:
# its environment is in envK.log, what pytest prints in train.logK. Device 0 runs in the foreground, and its end is the end of the training.
#
#   bash run_rank_table.sh DATA_PATH RANK_SIZE
set -u
if [ $# -ne 2 ]; then
    echo "usage: bash run_rank_table.sh DATA_PATH RANK_SIZE" >&2
    exit 1
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/environment.sh"
export DATA_PATH=$1 RANK_SIZE=$2
export RANK_TABLE_FILE=${RANK_TABLE_FILE:-$here/rank_table_${RANK_SIZE}pcs.json}

start() { # device
    rm -rf "device$1"
    mkdir "device$1"
    cp "$here/resnet50_distributed_training.py" "$here/resnet.py" "device$1/"
    cd "device$1" || exit 1
    export DEVICE_ID=$1 RANK_ID=$1
    echo "start training for device $1"
    env > "env$1.log"
    "$PYTHON" -m pytest -s -v -p no:cacheprovider ./resnet50_distributed_training.py > "train.log$1" 2>&1
}

for ((device = 1; device < RANK_SIZE; device++)); do
    start "$device" &
done
if (start 0); then
    echo "training success"
else
    echo "training failed; device0/train.log0 says why" >&2
    wait
    exit 2
fi
wait
