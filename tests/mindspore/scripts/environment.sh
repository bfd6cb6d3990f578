# Sourced by the scripts beside this one: `import mindspore` is parallel_lab's, and how mpirun starts ranks on this machine.
#
# PYTHON   the interpreter that has parallel_lab (default: python)

PYTHON=${PYTHON:-python}
PYTHONPATH=$("$PYTHON" -m parallel_lab as-mindspore)${PYTHONPATH:+:$PYTHONPATH} || exit 1
export PYTHONPATH

# more ranks than cores are allowed; Open MPI wants to be told that root means it
MPIRUN=(mpirun --oversubscribe)
if [ "$(id -u)" -eq 0 ]; then
    MPIRUN+=(--allow-run-as-root)
fi
