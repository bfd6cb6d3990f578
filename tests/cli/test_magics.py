"""`%%ranks` in a notebook: a cell as a script on real ranks, in a real kernel."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from tests.processes.launched import Started, environment

pytestmark = pytest.mark.timeout(150)

PROMISE_BOUND_S = 5.0
BARRIER = "hooks.current_world().comm.barrier()\n"
HEAD = (
    "from parallel_lab.train.communication import init, get_rank\nfrom parallel_lab.base import hooks\nimport numpy "
    "as np, time\ninit()\n"
)


class Kernel:
    """A kernel of its own, with the extension loaded."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        tag = f"PARALLEL_LAB_TEST_TAG={uuid.uuid4().hex}"
        name, value = tag.split("=")
        # no warnings as errors: ipykernel has some of its own
        variables = {**environment(), name: value, "PYTHONWARNINGS": "default"}
        self.manager = KernelManager()
        self.manager.start_kernel(env=variables, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid
        self.family = Started(None, tag)
        assert self.run("%load_ext parallel_lab")[0] == "ok"

    def run(self, code: str, during=None, limit_s: float = 60.0) -> tuple[str, str, list[tuple[float, str]]]:
        """(status, error text, [(time, output)]) of a cell; `during(output so far)` is called after each new output."""
        sent = self.client.execute(code)
        outputs: list[tuple[float, str]] = []
        error = ""
        end = time.monotonic() + limit_s
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                outputs.append((time.monotonic(), content["text"]))
                if during:
                    during("".join(text for _, text in outputs))
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while (reply := self.client.get_shell_msg(timeout=max(0.1, end - time.monotonic())))["parent_header"].get(
            "msg_id"
        ) != sent:
            continue  # an answer to what was asked before
        return reply["content"]["status"], error, outputs

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for pid in self.family.family():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    pytest.importorskip("ipykernel")
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


def only_kernel_left(kernel: Kernel, limit_s: float = PROMISE_BOUND_S) -> bool:
    end = time.monotonic() + limit_s
    while set(kernel.family.family()) - {kernel.pid}:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def text_of(outputs) -> str:
    return "".join(text for _, text in outputs)


def temporary_folders() -> list[str]:
    import tempfile

    return [
        name for name in os.listdir(tempfile.gettempdir()) if name.startswith(("parallel_lab-", "parallel-lab-run"))
    ]


@pytest.mark.exhaustive
def test_a_cell_runs_on_all_ranks_and_its_lines_come_as_they_are_printed(kernel):
    body = (
        HEAD + "print('sum', hooks.current_world().comm.all_reduce(np.ones(2) * get_rank()).tolist(), "
        "flush=True)\ntime.sleep(1.5)\nprint('end')"
    )
    status, error, outputs = kernel.run(f"%%ranks -n 3\n{body}")
    assert status == "ok", error
    found = sorted(text_of(outputs).split("\n"))
    assert found == sorted(["", *(f"[{rank}] {word}" for rank in range(3) for word in ("sum [3.0, 3.0]", "end"))])
    assert outputs[-1][0] - outputs[0][0] > 1.0  # the first lines did not wait for the last
    assert only_kernel_left(kernel) and temporary_folders() == []


@pytest.mark.exhaustive
def test_an_error_names_the_rank_and_the_cell_s_own_line(kernel):
    # rank 1 gives rank 0 the time to wait for it
    body = (
        "comm = hooks.current_world().comm\nif get_rank() == 1:\n    comm.recv(0)\n    time.sleep(1)\n    raise "
        "ValueError('bad layer')\n"
    )
    body += f"comm.send(np.ones(1), 1)\n{BARRIER}"
    status, error, outputs = kernel.run(f"%%ranks -n 2\n{HEAD}{body}")
    assert status == "error"
    number = error.partition("In[")[2].partition("]")[0]
    # line 1 is the magic's, then come four lines of HEAD and five of the cell
    assert error.startswith(f"RankRaised: rank 1 raised ValueError: bad layer (In[{number}]:10); its last call")
    assert "rank 0 in barrier" in error
    assert f'File "In[{number}]", line 10, in <module>\n[1]     raise ValueError' in text_of(outputs)
    assert int(number) == len(kernel_inputs(kernel)) - 2  # of this question and the empty input 0
    assert only_kernel_left(kernel)


def kernel_inputs(kernel: Kernel) -> list[str]:
    _, _, outputs = kernel.run("print(len(_ih))")
    return [""] * int(text_of(outputs))


@pytest.mark.exhaustive
def test_the_interrupt_button_ends_all_ranks(kernel):
    pressed = []

    def press(output: str) -> None:
        if output.count("ready") == 2 and not pressed:
            pressed.append(time.monotonic())
            kernel.manager.interrupt_kernel()

    body = (
        HEAD + "print('ready', flush=True)\nif get_rank():\n    time.sleep(1000)\nhooks.current_world().comm.barrier()"
    )
    status, error, outputs = kernel.run(f"%%ranks -n 2\n{body}", during=press)
    taken_s = time.monotonic() - pressed[0]
    print(f"the cell ended {taken_s * 1e3:.0f} ms after the interrupt")
    assert status == "error" and error == "KeyboardInterrupt: interrupted; all ranks have ended"
    assert taken_s < PROMISE_BOUND_S and only_kernel_left(kernel) and temporary_folders() == []
    assert "Traceback" not in text_of(outputs)
    assert kernel.run("1 + 1")[0] == "ok"


@pytest.mark.exhaustive
def test_wrong_options_and_help(kernel):
    for number in ("none", "0"):
        status, error, _ = kernel.run(f"%%ranks -n {number}\nprint(1)")
        assert status == "error" and f"'{number}' is not a whole number from 1 to 4096" in error
    status, _, outputs = kernel.run("%%ranks --help\nprint(1)")
    assert status == "ok" and "--as-mindspore" in text_of(outputs) and "[0]" not in text_of(outputs)


@pytest.mark.exhaustive
def test_a_cell_over_mpi(kernel):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    import shutil

    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is missing")
    body = HEAD + "world = hooks.current_world()\nprint(world.backend, world.comm.all_reduce(np.ones(2)).tolist())"
    status, error, outputs = kernel.run(f"%%ranks -n 2 --backend mpi\n{body}")
    assert status == "ok", error
    assert sorted(text_of(outputs).splitlines()) == ["[0] mpi [2.0, 2.0]", "[1] mpi [2.0, 2.0]"]
    status, error, outputs = kernel.run(
        f"%%ranks -n 2 --backend mpi\n{HEAD}if get_rank():\n    raise ValueError('bad')\n{BARRIER}"
    )
    assert status == "error" and "rank 1 raised ValueError" in error and "line 7" in text_of(outputs)
    assert only_kernel_left(kernel) and temporary_folders() == []


@pytest.mark.faults("ends of notebooks, launchers")
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["shared_memory", "mpi"])
def test_no_rank_outlives_a_kernel_that_is_killed(tmp_path, backend):
    if backend == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    kernel = Kernel(tmp_path)
    try:
        body = f"{HEAD}open(f'ready.{{get_rank()}}', 'w').close()\nwhile True: {BARRIER}"
        kernel.client.execute(f"%%ranks -n 2 --backend {backend}\n{body}")
        end = time.monotonic() + 60
        while not all((tmp_path / f"ready.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(kernel.pid, signal.SIGKILL)
        taken_s = kernel.family.gone_after(10.0)
        print(f"gone {taken_s} s after the kernel")
        assert taken_s is not None and taken_s < PROMISE_BOUND_S
    finally:
        kernel.close()
    assert temporary_folders() == []
