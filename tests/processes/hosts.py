"""Two hosts on one machine: Linux network namespaces with an address, a name, a /dev/shm and no way but the one between
them, and a launch agent instead of ssh."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parallel_lab.processes.mpi import Hosts

# HOST COMMAND ...: as ssh. Every call is a "login" of its own: name, /dev/shm and files of /etc are those of the host
AGENT = """\
#!/bin/sh
case $1 in
{cases}
*) echo "no host $1" >&2; exit 255 ;;
esac
shift
exec ip netns exec "$space" unshare --mount --uts sh -c '
  mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf &&
  mount -t tmpfs -o size=256m tmpfs /dev/shm && hostname "$2" && shift 2 && eval "$*"' sh {folder} "$name" "$@"
"""


@dataclass
class TwoHosts:
    """`hosts`: as given to mpirun; `agent`: what it starts commands with; `names` of the hosts, and of their spaces."""

    folder: Path
    names: tuple[str, str] = ("ada", "bob")
    addresses: tuple[str, str] = ("10.77.0.1", "10.77.0.2")
    spaces: tuple[str, str] = field(default_factory=lambda: (f"pl{os.getpid()}a", f"pl{os.getpid()}b"))

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    @property
    def hosts(self) -> Hosts:
        return Hosts(str(self.folder / "hostfile"), "10.77.0.0/24")

    def make(self, slots: int) -> None:
        for space in self.spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        links = [f"{space}l" for space in self.spaces]
        ip("link", "add", links[0], "netns", self.spaces[0], "type", "veth", "peer", links[1], "netns", self.spaces[1])
        for space, link, address in zip(self.spaces, links, self.addresses, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", space, "link", "set", link, "up")
        known = zip(self.addresses, self.names, strict=True)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in known))
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "hostfile").write_text("".join(f"{a} slots={slots}\n" for a in self.addresses))
        each = zip(self.addresses, self.spaces, self.names, strict=True)
        cases = "\n".join(f"{a}) space={s} name={n} ;;" for a, s, n in each)
        self.agent.write_text(AGENT.format(cases=cases, folder=self.folder))
        self.agent.chmod(0o700)

    def on_first(self, *command: str) -> list[str]:
        """The command as if typed on the first host; its mpirun reaches the other one."""
        variables = (f"OMPI_MCA_plm_rsh_agent={self.agent}", f"TMPDIR={self.folder}")
        return [str(self.agent), self.addresses[0], shlex.join(("exec", "env", *variables, *command))]

    def pids(self, host: int) -> list[int]:
        """What runs on a host."""
        return [int(word) for word in ip("netns", "pids", self.spaces[host]).split()]

    def commands(self, host: int) -> list[str]:
        """Their command lines."""
        found = []
        for pid in self.pids(host):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80])
        return found

    def kill_all(self, host: int) -> None:
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """The cable is pulled."""
        ip("-n", self.spaces[1], "link", "set", f"{self.spaces[1]}l", "down")

    def remove(self) -> None:
        for host, space in enumerate(self.spaces):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill_all(host)
                ip("netns", "del", space)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def missing() -> str:
    """What this machine lacks for two hosts; "": nothing."""
    tools = [name for name in ("ip", "unshare", "mpirun") if shutil.which(name) is None]
    if tools:
        return f"{', '.join(tools)} not installed (apt-get install iproute2 util-linux openmpi-bin)"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"network namespaces need root: {tried.stderr.strip()}"


@contextlib.contextmanager
def two_hosts(folder: Path, slots: int = 2) -> Iterator[TwoHosts]:
    """Two hosts with so many slots each; nothing of them is left. Skips, by name, where they cannot be made."""
    if why := missing():
        pytest.skip(f"two hosts: {why}")
    made = TwoHosts(folder)
    try:
        made.make(slots)
        yield made
    finally:
        made.remove()
