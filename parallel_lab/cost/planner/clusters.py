"""Well-known clusters as data, and clusters from a file.

    >>> found = get_machine("dgx_a100", 4096)
    >>> found.cluster.device_num, found.cluster.node_count, found.peak_flops_per_s / 1e12
    (4096, 512, 312.0)

A Machine is a `base.cluster.Cluster` with the peak that utilization is measured against. The file is JSON, a preset
with changes or all of it: {"preset": "dgx_a100", "node_link": {"alpha_s": 1e-5, "beta_s_per_byte": 4e-11}}.

From data sheets: peak (half precision, dense), memory, its bandwidth, links per direction and device. Choices, equal
for all: messages reach 0.8 of a link, 5 us an instruction, 5 us a message in a node and 10 us between nodes; a compiled
block's products reach 0.7 of the peak. What products and attention of a decoder reach is fitted, a set of constants for
each chip, on two published runs at most (`Reached.fitted`). How near published steps come with them:
tests/cost/test_planner_point.py, tests/cost/test_published.py.
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
FP8_OF_BF16 = 0.8  # twice the operations on the same power and the same memory
_INSTRUCTION_S, _MESSAGE_S, _MESSAGE_BETWEEN_S = 5e-6, 5e-6, 10e-6
GIB = 2**30  # a card sold with 80 GB has 80 GiB (nvidia-smi: 81,920 MiB and less)
_HOST = REACHED_OF_LINK * 32e9  # bytes per second: PCIe 4.0 x16


@dataclass(frozen=True)
class Reached:
    """Shares of a chip's peak in bfloat16 that its kernels reach: large products, and flash attention. Products in fp8
    reach FP8_OF_BF16 times that share of their own peak.

    fitted  ids of the published runs that they come from; () where they are those that most chips have
    """

    products: float = REACHED_OF_PEAK
    attention: float = 0.45
    fitted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("products", "attention"):
            number(0, 1, above=True)("Reached", name, getattr(self, name))


@dataclass(frozen=True)
class Machine:
    """A cluster, the peak of one of its devices (operations per second), and where the numbers come from.

    fp8_flops_per_s    the peak of products in fp8; 0: not there
    host_bytes_per_s   of a device to its host, in a direction
    reached            None: the rate of the cluster's device, for all products
    """

    cluster: Cluster
    peak_flops_per_s: float
    source: str
    fp8_flops_per_s: float = 0.0
    host_bytes_per_s: float = _HOST
    reached: Reached | None = None

    def __post_init__(self) -> None:
        number(0, above=True)("Machine", "peak_flops_per_s", self.peak_flops_per_s)
        number(0)("Machine", "fp8_flops_per_s", self.fp8_flops_per_s)
        number(0, above=True)("Machine", "host_bytes_per_s", self.host_bytes_per_s)

    def rate(self, kind: str) -> float:
        """Operations per second that are reached: of products in "bf16" and "fp8", of "attention"."""
        if self.reached is None:
            return self.cluster.device.flops_per_s
        if kind == "fp8":
            return FP8_OF_BF16 * self.reached.products * (self.fp8_flops_per_s or self.peak_flops_per_s)
        return self.peak_flops_per_s * (self.reached.products if kind == "bf16" else self.reached.attention)


@dataclass(frozen=True)
class _Chip:
    """A data sheet: the peak, memory and its bandwidth, the peak in fp8, the host's link; what kernels reach."""

    peak: float
    memory: float
    bandwidth: float
    fp8: float = 0.0
    host: float = 32e9
    reached: Reached = Reached()


def _machine(name: str, chip: _Chip, link: float, node_link: float, per_node: int, source: str) -> Machine:
    device = Device(REACHED_OF_PEAK * chip.peak, int(chip.memory), chip.bandwidth, _INSTRUCTION_S)
    inside = Link(_MESSAGE_S, 1 / (REACHED_OF_LINK * link))
    between = Link(_MESSAGE_BETWEEN_S, 1 / (REACHED_OF_LINK * node_link))
    cluster = Cluster(name, device, inside, per_node, 1, between)
    return Machine(cluster, chip.peak, source, chip.fp8, REACHED_OF_LINK * chip.host, chip.reached)


# shares that kernels reach, each pair fitted on at most two published runs (`tests/bench/fit_chips.py`)
_A100 = Reached(0.76, 0.61, ("sc21-1008b", "rfa-a100-f-zigzag"))
_H100_500W = Reached(0.57, 0.19, ("titan-8b-8-compile", "titan-8b-cp4"))
_H100 = Reached(0.63, 0.63, ("nemotron4-340b-dgxc-128", "nemo-llama3-8b-h100-2511"))
_H800 = Reached(0.63, 0.31, ("rfa-h800-f-zigzag",))
_BLACKWELL = Reached(0.54, 0.54, ("nemo-deepseek-v3-gb200-bf16", "nemo-qwen3-235b-gb200-bf16"))
_CHIPS = {
    "V100": _Chip(125e12, 32e9, 900e9, 0, 16e9),
    "A100": _Chip(312e12, 80 * GIB, 2.039e12, reached=_A100),
    "A100 40GB": _Chip(312e12, 40 * GIB, 1.555e12, reached=_A100),
    "H100": _Chip(989e12, 80 * GIB, 3.35e12, 1979e12, 64e9, _H100),
    "H100 500W": _Chip(989e12, 96 * GIB, 2.4e12, 1979e12, 64e9, _H100_500W),
    "H800": _Chip(989e12, 80 * GIB, 3.35e12, 1979e12, 64e9, _H800),
    "H200": _Chip(989e12, 140 * GIB, 4.8e12, 1979e12, 64e9, _H100),
    "B200": _Chip(2250e12, 179 * GIB, 8e12, 4500e12, 64e9, _BLACKWELL),
    "GB200": _Chip(2500e12, 185 * GIB, 8e12, 5000e12, 225e9, _BLACKWELL),
    "B300": _Chip(2250e12, 268 * GIB, 8e12, 4500e12, 64e9, _BLACKWELL),
    "GB300": _Chip(2500e12, 276 * GIB, 8e12, 5000e12, 225e9, _BLACKWELL),
    "Ascend 910": _Chip(256e12, 32e9, 1.2e12),
    "TPU v4": _Chip(275e12, 32e9, 1.228e12),
    "TPU v5p": _Chip(459e12, 95e9, 2.765e12),
}
# name: chip, link, node link, devices per node, source: bytes per second of a link are those of one direction, for each
# device; EDR, HDR, NDR: 100, 200, 400 Gbit/s a port
_MACHINES: dict[str, tuple[str, float, float, int, str]] = {
    "dgx2_v100": ("V100", 150e9, 6.25e9, 16, "NVIDIA DGX-2: V100 SXM3, NVSwitch, 8 x EDR for 16"),
    "dgx_a100": ("A100", 300e9, 25e9, 8, "NVIDIA DGX A100 80GB: NVLink 3, 8 x HDR (Selene)"),
    "a100_40gb": ("A100 40GB", 300e9, 25e9, 8, "NVIDIA A100 40GB SXM4: NVLink 3, 8 x HDR"),
    "dgx_h100": ("H100", 450e9, 50e9, 8, "NVIDIA DGX H100: H100 SXM5, NVLink 4, 8 x NDR"),
    "h100_roce": ("H100", 450e9, 50e9, 8, "Meta Grand Teton: H100 SXM5 at 700 W, NVLink 4, 8 x 400 GbE RoCE"),
    "h100_500w": ("H100 500W", 450e9, 50e9, 8, "H100 96GB HBM2e limited to 500 W (torchtitan's benchmarks)"),
    "h800": ("H800", 200e9, 50e9, 8, "H800 SXM5: NVLink at 400 GB/s both ways, 8 x NDR (2412.19437)"),
    "dgx_h200": ("H200", 450e9, 50e9, 8, "NVIDIA DGX H200: NVLink 4, 8 x NDR"),
    "dgx_b200": ("B200", 900e9, 50e9, 8, "NVIDIA DGX B200: NVLink 5, 8 x NDR"),
    "gb200": ("GB200", 900e9, 50e9, 64, "NVIDIA GB200 NVL72: NVLink 5; 64 of 72 devices are used"),
    "dgx_b300": ("B300", 900e9, 100e9, 8, "NVIDIA DGX B300: NVLink 5, 8 x 800 Gbit/s"),
    "gb300": ("GB300", 900e9, 100e9, 64, "NVIDIA GB300 NVL72: NVLink 5; 64 of 72 are used"),
    "atlas_910": ("Ascend 910", 90e9, 12.5e9, 8, "Ascend 910 (Hot Chips 2019): 3 x HCCS, 100 GbE RoCE"),
    "tpu_v4": ("TPU v4", 150e9, 6.25e9, 3072, "Google TPU v4 (2304.01433): a pod of PaLM's, rings of its torus"),
    "tpu_v5p": ("TPU v5p", 180e9, 6.25e9, 8960, "Google Cloud TPU v5p: a pod, rings of its torus"),
}
MACHINES: tuple[Machine, ...] = tuple(
    _machine(name, _CHIPS[chip], link, node_link, per_node, source)
    for name, (chip, link, node_link, per_node, source) in _MACHINES.items()
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
_OWN = ("peak_flops_per_s", "fp8_flops_per_s", "host_bytes_per_s", "source")


def _from_data(data: Mapping[str, Any]) -> Machine:
    plain = tuple(f.name for f in fields(Cluster) if f.name not in ("host", *_PARTS))
    _known("", data, ("preset", *_OWN, *_PARTS, *plain))
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
        base = Machine(cluster, cluster.device.flops_per_s, "a file")
    else:
        base = replace(base, cluster=replace(base.cluster, **given))
        if "flops_per_s" in data.get("device", ()):  # its own rate counts, for all products
            base = replace(base, reached=None)
    own = {key: data[key] for key in _OWN if key in data}
    return replace(base, **own | {"source": str(own.get("source", base.source))})


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
