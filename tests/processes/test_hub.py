"""Three learners on one JupyterHub, each with a server, a kernel and worker processes of their own.

The hub is a real one: DummyAuthenticator, SimpleLocalProcessSpawner (all servers are this account's, as on a single
machine without accounts), configurable-http-proxy, jupyterhub-idle-culler. `.ci/run` installs it (extra `hub`, and the
proxy from npm); all tests here are exhaustive.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROXY = shutil.which("configurable-http-proxy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
HUB = ("jupyterhub", "jupyterhub_idle_culler", "websocket")
LACKS = [name for name in HUB if importlib.util.find_spec(name) is None]
LACKS += [] if PROXY else ["configurable-http-proxy (npm install -g configurable-http-proxy)"]
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(bool(LACKS), reason=f"a JupyterHub needs {', '.join(LACKS)}: extra `hub`"),
]
LEARNERS = ("ada", "bo", "cy")
PATIENCE_S = 120
IDLE_S = 20  # until a server is culled
CONFIG = """
import sys
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home/{{username}}"
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.environment = {{"PYTHONPATH": {path!r}, "JUPYTERHUB_ACTIVITY_INTERVAL": "3"}}
c.Spawner.start_timeout = c.Spawner.http_timeout = {patience}
c.JupyterHub.services = [
    {{"name": "teacher", "api_token": "{token}"}},
    {{"name": "culler",
      "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout={idle}", "--cull-every=2"]}},
]
c.JupyterHub.load_roles = [
    {{"name": "all", "services": ["teacher"], "scopes": ["admin:users", "admin:servers", "tokens", "access:servers"]}},
    {{"name": "culls", "services": ["culler"],
      "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"]}},
]
"""
OPEN = """
import os, psutil
import parallel_lab as pl
lab = pl.FusionLab()
lab.set_subject("chain")
def train():
    lab.run_measured(3)
    lab.wait()
    assert "measured" in lab.results, lab.snapshot()["run"]
    return lab.results["measured"]
def workers():
    return sorted(p.pid for p in psutil.Process().children(recursive=True))
"""
TRAIN = "result = train(); print(result.source, result.equal, result.compared, workers())"
EQUAL = "measured True "


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def until(what, seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.1)
    return bool(found)


class Hub:
    """A running hub, asked over its REST interface."""

    def __init__(self, folder: Path) -> None:
        port, hub_port, proxy_port = free_ports(3)
        self.url, self.token = f"http://127.0.0.1:{port}", secrets.token_hex(16)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        config = CONFIG.format(
            port=port, hub_port=hub_port, proxy_port=proxy_port, proxy=PROXY, folder=folder, path=path,
            patience=PATIENCE_S, idle=IDLE_S, token=self.token,
        )  # fmt: skip
        (folder / "config.py").write_text(config)
        self.connections = contextlib.ExitStack()
        self.log = folder / "hub.log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "jupyterhub", "-f", str(folder / "config.py")]
            env = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)}
            how = {"cwd": folder, "env": env, "stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = subprocess.Popen(command, **how)
        try:
            assert until(lambda: self.process.poll() is not None or self._answers("/hub/api/")), self.tail()
            assert self.process.poll() is None, self.tail()
        except BaseException:
            self.end()
            raise

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            self.ask("GET", path)
            return True
        return False

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {token or self.token}"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def server(self, learner: str) -> dict | None:
        """A learner's server as the hub knows it."""
        return self.ask("GET", f"/hub/api/users/{learner}")["servers"].get("")

    def end(self) -> None:
        self.connections.close()
        self.process.terminate()  # it stops the learners' servers and the proxy
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


class Learner:
    """A learner with a server and a kernel on it; `run` is one cell."""

    def __init__(self, hub: Hub, name: str) -> None:
        import websocket

        self.hub, self.name = hub, name
        hub.ask("POST", f"/hub/api/users/{name}")
        hub.ask("POST", f"/hub/api/users/{name}/server")
        assert until(lambda: (hub.server(name) or {}).get("ready")), hub.tail()
        self.token = hub.ask("POST", f"/hub/api/users/{name}/tokens", {})["token"]
        self.kernel = hub.ask("POST", f"/user/{name}/api/kernels", {"name": "python3"}, self.token)["id"]
        address = f"{hub.url.replace('http', 'ws', 1)}/user/{name}/api/kernels/{self.kernel}/channels"
        self.socket = websocket.create_connection(
            address, header={"Authorization": f"token {self.token}"}, suppress_origin=True, timeout=PATIENCE_S
        )
        hub.connections.callback(self.socket.close)

    def run(self, code: str) -> str:
        """What the cell printed, or its error in a line."""
        ident = uuid.uuid4().hex
        header = {
            "msg_id": ident,
            "msg_type": "execute_request",
            "session": ident,
            "username": self.name,
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self.socket.send(json.dumps(message))
        told = ""
        while True:
            got = json.loads(self.socket.recv())
            if got["parent_header"].get("msg_id") != ident:
                continue
            if got["msg_type"] == "stream" and got["content"]["name"] == "stdout":
                told += got["content"]["text"]
            elif got["msg_type"] == "error":
                told += f"{got['content']['ename']}: {got['content']['evalue']}"
            elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                return told

    def processes(self) -> dict[int, str]:
        """Every process that this learner's server has started, itself included."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("JUPYTERHUB_USER") == self.name and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline())
        return found

    def cpu_s(self) -> float:
        """Processor time of all of them that live."""
        total = 0.0
        for pid in self.processes():
            with contextlib.suppress(psutil.Error):
                total += sum(psutil.Process(pid).cpu_times()[:2])
        return total

    def pss_mb(self) -> float:
        """Memory of all of them, shared pages counted once."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    started = Hub(tmp_path)
    try:
        yield started
    finally:
        started.end()


def workers_of(told: str) -> set[int]:
    return set(map(int, told.rpartition("[")[2].rstrip("]\n").split(",")))


def test_three_learners_train_at_once_none_touches_anothers_workers_and_a_culled_server_leaves_nothing(hub):
    with ThreadPoolExecutor(3) as pool:
        ada, bo, cy = learners = list(pool.map(lambda name: Learner(hub, name), LEARNERS))
        servers = [learner.pss_mb() for learner in learners]
        list(pool.map(lambda learner: learner.run(OPEN), learners))
        opened = [learner.pss_mb() for learner in learners]
        before_s = [learner.cpu_s() for learner in learners]
        told = list(pool.map(lambda learner: learner.run(TRAIN), learners))
        worked_s = [learner.cpu_s() - before for learner, before in zip(learners, before_s, strict=True)]
        trained = [learner.pss_mb() for learner in learners]
    print("MB (PSS) of a learner: server and kernel", servers, "lab open", opened, "after training", trained)
    print("processor time of this training in s", worked_s, "processes", [len(one.processes()) for one in learners])
    # equal to the run without fusion, bit for bit, in as many arrays for each
    assert all(text.startswith(EQUAL) for text in told), told
    assert len({text.rpartition("[")[0] for text in told}) == 1, told
    workers = [workers_of(text) for text in told]
    assert all(len(own) >= 2 for own in workers)
    for learner, own in zip(learners, workers, strict=True):
        assert own <= learner.processes().keys()
    assert not workers[0] & workers[1] and not workers[1] & workers[2] and not workers[0] & workers[2]

    victim = max(workers[0])
    os.kill(victim, signal.SIGKILL)
    assert until(lambda: not psutil.pid_exists(victim) or psutil.Process(victim).status() == psutil.STATUS_ZOMBIE)
    for learner, own, before in ((bo, workers[1], told[1]), (cy, workers[2], told[2])):
        assert workers_of(learner.run("print(workers())")) == own  # nobody else's have ended
        assert learner.run(TRAIN).rpartition("[")[0] == before.rpartition("[")[0]
    assert ada.run(TRAIN).startswith(EQUAL)  # with new workers

    hub.ask("DELETE", "/hub/api/users/ada/server")
    assert until(lambda: not ada.processes(), 30), ada.processes()
    assert bo.run(TRAIN).startswith(EQUAL) and cy.run(TRAIN).startswith(EQUAL)

    # from here on nobody does anything
    assert until(lambda: hub.server("bo") is None and hub.server("cy") is None), hub.tail()
    assert until(lambda: not bo.processes() and not cy.processes(), 30), (bo.processes(), cy.processes())
