"""MindSpore's dynamic cluster: a scheduler and N workers, started one by one, meet by environment variables.

    MS_ROLE          MS_SCHED (one process; it runs `init` and nothing after it) or MS_WORKER (N processes)
    MS_WORKER_NUM    N
    MS_SCHED_HOST    an address of this machine;  MS_SCHED_PORT: 1024 to 65535. Here they only name the place where the
                     processes meet
    MS_NODE_ID       a whole number fixes the rank of a worker; without one the free ranks go out in the order of
                     arrival
    MS_TOPO_TIMEOUT  seconds for all to come (600)

Names and rules: MindSpore, Dynamic Cluster Startup. A worker too many is turned away; one too few: it fails for all.
"""

from __future__ import annotations

import os
import socket
import sys

from ...base.errors import NotBuiltYet, WorldArgumentError, shorten
from ...base.settings.checks import MAX_DEVICES
from .hub import Hub, RendezvousSpec
from .rendezvous import join_rendezvous
from .world import World, collective_timeout_s, seconds_from, whole_number

LIMIT_S = 600.0


def meet_in_cluster(library: str) -> World:
    """The world of a worker. The scheduler stays until the last worker has gone, then SystemExit (0 if all went well).
    Raises WorldArgumentError for missing or senseless variables, NotBuiltYet for a scheduler on another machine.
    """
    role = os.environ["MS_ROLE"]
    if role == "MS_PSERVER":
        what = "MS_ROLE=MS_PSERVER: there is no parameter server here"
        raise NotBuiltYet(what, where="init", allowed="MS_SCHED or MS_WORKER")
    if role not in ("MS_SCHED", "MS_WORKER"):
        raise WorldArgumentError(f"MS_ROLE={shorten(role)}", where="init", allowed="MS_SCHED or MS_WORKER")
    count = _needed_number("MS_WORKER_NUM", 1, MAX_DEVICES)
    port = _needed_number("MS_SCHED_PORT", 1024, 65535)
    host = _needed("MS_SCHED_HOST")
    check_host(host, "MS_SCHED_HOST")
    plan = RendezvousSpec(
        name=f"parallel_lab-{os.getuid()}-cluster-{port}",
        what=f"port {port} of the cluster",
        hub="the scheduler",
        world_size=count,
        launcher="a dynamic cluster",
        limit_s=seconds_from("MS_TOPO_TIMEOUT", LIMIT_S),
        limit_variable="MS_TOPO_TIMEOUT",
        timeout_s=collective_timeout_s(),
    )
    if role == "MS_SCHED":
        _schedule(plan)
    node = os.environ.get("MS_NODE_ID", "")
    rank = int(node) if node.isascii() and node.isdigit() else None
    if rank is not None and rank >= count:
        allowed = f"As a number, a rank from 0 to {count - 1}"
        raise WorldArgumentError(f"MS_NODE_ID={rank}", where="init", allowed=allowed)
    return join_rendezvous(plan, rank, library)


def _schedule(plan: RendezvousSpec) -> None:
    hub = Hub(plan)
    hub.collect()
    print(f"scheduler: {plan.world_size} workers have met", flush=True)
    try:
        hub.watch()
    finally:
        hub.close()
    fault = hub.world.fault()
    print("scheduler: all workers have ended" + (f"; {fault['text']}" if fault else ""), flush=True)
    sys.exit(1 if fault else 0)


def _needed(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        allowed = "A dynamic cluster needs MS_ROLE, MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT"
        raise WorldArgumentError(f"MS_ROLE is set, but {name} is not", where="init", allowed=allowed)
    return value


def _needed_number(name: str, low: int, high: int) -> int:
    return whole_number(name, _needed(name), f"A whole number from {low} to {high}", low=low, high=high)


def check_host(host: str, name: str) -> None:
    """Raise WorldArgumentError for a host that cannot be found, NotBuiltYet for one that is not this machine."""
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        what = f"{name}={shorten(host)} cannot be found ({error})"
        raise WorldArgumentError(what, allowed="An address of this machine") from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))  # only an address of this machine can be bound
        except OSError:
            what = f"{name}={host} is another machine, and these ranks share the memory of one"
            hint = "Several hosts: mpirun -H host1:4,host2:4 python script.py"
            raise NotBuiltYet(what, hint=hint) from None
