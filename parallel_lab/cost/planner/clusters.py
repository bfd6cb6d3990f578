"""Well-known clusters as data, and clusters from a file.

    >>> found = get_machine("dgx_a100", 4096)
    >>> found.cluster.device_num, found.cluster.node_count, found.peak_flops_per_s / 1e12
    (4096, 512, 312.0)

A Machine is a `base.cluster.Cluster` with the peak that utilization is measured against. The file is JSON, a preset
with changes or all of it: {"preset": "dgx_a100", "node_link": {"alpha_s": 1e-5, "beta_s_per_byte": 4e-11}}.

From data sheets: peak (half precision, dense), memory, its bandwidth, links per direction and device. Choices, equal
for all: large products reach 0.7 of the peak, messages 0.8 of a link, 5 us an instruction, 5 us a message in a node and
10 us between nodes. How near published steps come with them: tests/cost/test_planner_point.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...base.checks import choice, integer, nearest, number
from ...base.cluster import CLUSTERS, Cluster, Device, Link
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.plain_json import read_json

LARGEST_FILE = 1 << 20  # bytes; one says less than a page
REACHED_OF_PEAK, REACHED_OF_LINK = 0.7, 0.8
_INSTRUCTION_S, _MESSAGE_S, _MESSAGE_BETWEEN_S = 5e-6, 5e-6, 10e-6


@dataclass(frozen=True)
class Machine:
    """A cluster, the peak of one of its devices (operations per second), and where the numbers come from."""

    cluster: Cluster
    peak_flops_per_s: float
    source: str

    def __post_init__(self) -> None:
        number(0, above=True)("Machine", "peak_flops_per_s", self.peak_flops_per_s)


def _machine(
    name: str, peak: float, memory: float, bandwidth: float, link: float, node_link: float, per_node: int, source: str
) -> Machine:
    device = Device(REACHED_OF_PEAK * peak, int(memory), bandwidth, _INSTRUCTION_S)
    inside = Link(_MESSAGE_S, 1 / (REACHED_OF_LINK * link))
    between = Link(_MESSAGE_BETWEEN_S, 1 / (REACHED_OF_LINK * node_link))
    return Machine(Cluster(name, device, inside, per_node, 1, between), peak, source)


# name, peak, memory, its bandwidth, link, node link, devices per node: bytes per second of a link are those of one
# direction, for each device; EDR, HDR, NDR: 100, 200, 400 Gbit/s a port
MACHINES: tuple[Machine, ...] = (
    _machine("dgx2_v100", 125e12, 32e9, 900e9, 150e9, 6.25e9, 16, "NVIDIA DGX-2: V100 SXM3, NVSwitch, 8 x EDR for 16"),
    _machine("dgx_a100", 312e12, 80e9, 2.039e12, 300e9, 25e9, 8, "NVIDIA DGX A100 80GB: NVLink 3, 8 x HDR (Selene)"),
    _machine("dgx_h100", 989e12, 80e9, 3.35e12, 450e9, 50e9, 8, "NVIDIA DGX H100: H100 SXM5, NVLink 4, 8 x NDR"),
    _machine("atlas_910", 256e12, 32e9, 1.2e12, 90e9, 12.5e9, 8, "Ascend 910 (Hot Chips 2019): 3 x HCCS, 100 GbE RoCE"),
    _machine("tpu_v5p", 459e12, 95e9, 2.765e12, 180e9, 6.25e9, 8960, "Google Cloud TPU v5p: a pod, rings of its torus"),
)


def machine_names() -> tuple[str, ...]:
    """What `get_machine` knows by name."""
    return (*(m.cluster.name for m in MACHINES), *(c.name for c in CLUSTERS))


def get_machine(name: str | Machine | Cluster | Mapping[str, Any], devices: int | None = None) -> Machine:
    """A machine of `devices` devices: by name, from a Cluster, or from what its file says.

    devices  whole nodes of it are used, or a part of one; None: as many as it has

    A profile of `base.cluster` has no data sheet: its rate counts as its peak. Raises ArgumentError.
    """
    if isinstance(name, Mapping):
        described = _from_data(name)
    elif isinstance(name, Cluster):
        described = Machine(name, name.device.flops_per_s, "a Cluster that was given; its rate counts as its peak")
    elif isinstance(name, Machine):
        described = name
    else:
        by_name = {m.cluster.name: m for m in MACHINES} | {c.name: c for c in CLUSTERS}
        chosen = by_name[choice(*by_name)("get_machine", "name", name)]
        described = chosen if isinstance(chosen, Machine) else get_machine(chosen)
    return described if devices is None else replace(described, cluster=_sized(described.cluster, devices))


def _sized(cluster: Cluster, devices: int) -> Cluster:
    devices = integer(1, 10**7)("get_machine", "devices", devices)
    nodes = -(-devices // cluster.devices_per_node)
    if nodes > 1 and cluster.node_link is None:
        what = f"{devices} devices, and nothing joins nodes of {cluster.devices_per_node}"
        raise ArgumentError(what, where=f"Cluster {cluster.name!r}", hint="Give node_link")
    if nodes > 1 and devices % cluster.devices_per_node:
        allowed = f"A multiple of {cluster.devices_per_node}, the devices of a node"
        raise ArgumentError(f"{devices} devices", where=f"Cluster {cluster.name!r}", allowed=allowed)
    per_node = min(devices, cluster.devices_per_node)
    return replace(cluster, node_count=nodes, devices_per_node=per_node)


def read_machine(path: str | Path, devices: int | None = None) -> Machine:
    """The machine of a JSON file. Raises ArgumentError for a file that cannot be read or says what there is not."""
    where, hint = f"cluster file {str(path)!r}", "JSON, as in --help"
    data = read_json(path, ArgumentError, where=where, hint=hint, max_bytes=LARGEST_FILE)
    if not isinstance(data, dict):
        raise ArgumentTypeError(f"{str(path)!r} holds {shorten(data)}", where="cluster file", allowed="An object")
    return get_machine(data, devices)


_PARTS = {"device": Device, "link": Link, "node_link": Link}
_OWN = ("preset", "peak_flops_per_s", "source")


def _from_data(data: Mapping[str, Any]) -> Machine:
    plain = tuple(f.name for f in fields(Cluster) if f.name not in ("host", *_PARTS))
    _known("", data, (*_OWN, *_PARTS, *plain))
    base = get_machine(data["preset"]) if "preset" in data else None
    given: dict[str, Any] = {key: data[key] for key in plain if key in data}
    for key, kind in _PARTS.items():
        if key in data:
            given[key] = _part(key, kind, data[key], getattr(base.cluster, key) if base else None)
    if base is None:
        needed = [key for key in ("device", "link", "devices_per_node") if key not in given]
        if needed:
            hint = f"Or begin with a preset: {', '.join(machine_names())}"
            raise ArgumentError(f"{', '.join(needed)} missing", where="cluster file", hint=hint)
        described: dict[str, Any] = {"name": "cluster of a file", **given}
        cluster = Cluster(**described)
    else:
        cluster = replace(base.cluster, **given)
    peak = data.get("peak_flops_per_s", base.peak_flops_per_s if base else cluster.device.flops_per_s)
    return Machine(cluster, peak, str(data.get("source", base.source if base else "a file")))


def _part(key: str, kind: type, data: Any, before: Any) -> Any:
    if not isinstance(data, Mapping):
        raise ArgumentTypeError(f"{key}={shorten(data)}", where="cluster file", allowed="An object")
    names = tuple(f.name for f in fields(kind))
    _known(f"{key}.", data, names)
    if before is not None:
        return replace(before, **data)
    missing = [n for n in names if n not in data and n != "overhead_s"]
    if missing:
        raise ArgumentError(f"{key} lacks {', '.join(missing)}", where="cluster file", allowed=", ".join(names))
    return kind(**data)


def _known(prefix: str, data: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for key in data:
        if key not in names:
            allowed = ", ".join(names)
            raise ArgumentError(f"{prefix}{key}", where="cluster file", allowed=allowed, hint=nearest(str(key), names))
