"""What a plan runs on: devices, nodes and the links between them. Data only; `cost/` makes seconds and bytes of it.

    Cluster "two_nodes"     node 0: ranks 0-7  ===  node 1: ranks 8-15
                            link inside a node, node_link between nodes

    >>> two = get_cluster("two_nodes")
    >>> two.node_of(9), two.link_for((8, 9)) is two.link, two.link_for((0, 8)) is two.node_link
    (1, True, True)

Conventions: alpha is the start-up time of a message in seconds, beta the time per byte, so a message of m bytes takes
alpha + beta * m (Hockney). MindSpore's cost model names the two the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from .checks import Check, choice, instance, integer, number
from .errors import ArgumentError, ArgumentTypeError, shorten

_TIME, _RATE, _COUNT = number(0), number(0, above=True), integer(1)


def _check(where: str, data: Any, **checks: Check) -> None:
    """Raise ArgumentError or ArgumentTypeError unless the fields of `data` are what they may be."""
    for name, check in checks.items():
        check(where, name, getattr(data, name))


@dataclass(frozen=True)
class Link:
    """A way for messages: alpha_s seconds until the first byte arrives, beta_s_per_byte (1 / bandwidth) for each."""

    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        _check("Link", self, alpha_s=_TIME, beta_s_per_byte=_TIME)

    def time_s(self, size_bytes: float) -> float:
        """Seconds for one message of `size_bytes`.

        >>> Link(alpha_s=1e-6, beta_s_per_byte=1e-9).time_s(4000)
        5e-06
        """
        return self.alpha_s + self.beta_s_per_byte * size_bytes


@dataclass(frozen=True)
class Device:
    """What one rank computes with.

    flops_per_s                   arithmetic it reaches in large products, not the data sheet's peak
    memory_bytes                  memory for parameters, states and activations
    memory_bandwidth_bytes_per_s  bytes read and written per second (a copy of n bytes touches 2n)
    overhead_s                    seconds per instruction before any work is done
    """

    flops_per_s: float
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        _check("Device", self, flops_per_s=_RATE, memory_bytes=_COUNT, memory_bandwidth_bytes_per_s=_RATE)
        _check("Device", self, overhead_s=_TIME)

    @property
    def gamma_s_per_byte(self) -> float:
        """Seconds to combine one byte of a message with one byte that is here: two reads and one write."""
        return 3 / self.memory_bandwidth_bytes_per_s


@dataclass(frozen=True)
class Host:
    """The computer that the devices of a node are in: its memory, which they share, and what each of them has of it.

    memory_bytes                  of the node, for all that its ranks keep there
    link                          between a device and the host, in each direction; every device has one of its own
    flops_per_s, memory_bandwidth_bytes_per_s, overhead_s   as of a Device, of the part that computes for one rank
    """

    memory_bytes: int
    link: Link
    flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        _check("Host", self, memory_bytes=_COUNT, link=instance(Link, "A Link"), flops_per_s=_RATE)
        _check("Host", self, memory_bandwidth_bytes_per_s=_RATE, overhead_s=_TIME)


@dataclass(frozen=True)
class Cluster:
    """Equal devices, `devices_per_node` to a node; ranks fill the nodes in order.

    link  between devices of one node;  node_link  between nodes, may be None while there is one
    host  of each node; None: not known, and nothing can be placed there
    """

    name: str
    device: Device
    link: Link
    devices_per_node: int
    node_count: int = 1
    node_link: Link | None = None
    host: Host | None = None

    def __post_init__(self) -> None:
        where = f"Cluster {shorten(self.name)}"
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentTypeError(f"name={shorten(self.name)}", where="Cluster", allowed="A name")
        link = instance(Link, "A Link")
        _check(where, self, device=instance(Device, "A Device"), link=link, node_link=link | None)
        _check(where, self, devices_per_node=_COUNT, node_count=_COUNT, host=instance(Host, "A Host") | None)
        if self.node_count > 1 and self.node_link is None:
            what = f"{self.node_count} nodes have no link between them"
            raise ArgumentError(what, where=where, hint="Give node_link=Link(...)")

    @property
    def device_num(self) -> int:
        """Devices of all nodes."""
        return self.devices_per_node * self.node_count

    def check_device_num(self, device_num: int) -> None:
        """Raise ArgumentError unless the cluster has `device_num` devices."""
        if device_num > self.device_num:
            what = f"{device_num} ranks on {self.device_num} devices"
            allowed = f"{self.node_count} x {self.devices_per_node} devices, one rank on each"
            hint = f"A larger one is get_cluster('two_nodes').with_nodes({-(-device_num // 8)})"
            raise ArgumentError(what, where=f"Cluster {self.name!r}", allowed=allowed, hint=hint)

    @property
    def known_host(self) -> Host:
        """Its host. Raises ArgumentError if it is not known."""
        if self.host is None:
            what = "nothing is known about its host, and values of the plan lie there"
            raise ArgumentError(what, where=f"Cluster {self.name!r}", hint="Give host=Host(...)")
        return self.host

    def node_of(self, rank: int) -> int:
        """The node on which `rank` runs. Raises ArgumentError if the cluster has no such device."""
        if not 0 <= rank < self.device_num:
            where = f"Cluster {self.name!r}"
            raise ArgumentError(f"rank {rank}", where=where, allowed=f"Ranks run from 0 to {self.device_num - 1}")
        return rank // self.devices_per_node

    def link_for(self, group: Iterable[int]) -> Link:
        """The link that sets the pace of a group: the one between nodes if its ranks lie on several nodes."""
        return self.link_over(spans=len({self.node_of(rank) for rank in group}) > 1)

    def link_over(self, *, spans: bool) -> Link:
        """The link of a group that is known to span nodes, or not to."""
        return cast(Link, self.node_link) if spans else self.link  # several nodes have a link between them

    def with_nodes(self, node_count: int, node_link: Link | None = None) -> Cluster:
        """The same cluster with another number of nodes; `node_link` replaces the link between them.

        >>> get_cluster("two_nodes").with_nodes(512).device_num
        4096
        """
        name = f"{self.name} x{node_count}"
        return replace(self, name=name, node_count=node_count, node_link=node_link or self.node_link)


# Measured with eight ranks on 2 cores (Zen 5, numpy, one BLAS thread per rank), medians, 2026: the rates of eight ranks
# that work at once, a quarter of a core each. On 4 cores computing is up to twice as fast.
_SHARE = 2 / 8  # cores per rank

LAPTOP = Cluster(
    name="laptop",
    device=Device(
        # an MLP 784-1024-1024-10, batch 256, on one core: 2.45e9 operations per step (forward, weight gradients, input
        # gradients but the first) in 21.7 ms
        flops_per_s=1.13e11 * _SHARE,
        memory_bytes=1_000_000_000,  # a choice: an eighth of the 8 GB that are free on a laptop of 16 GB
        # a copy of 16 MiB runs at 25 GB/s on one process and on two: the memory, not a core, is the limit, and eight
        # ranks share it; a copied byte is read and written
        memory_bandwidth_bytes_per_s=2 * 25e9 / 8,
        overhead_s=2.5e-6 / _SHARE,  # the interpreter on a 4x4 ReLU: 2.5 us when it has a core for itself
    ),
    # Set by hand near the times of this package's own workers, eight ranks (tests/base/test_cluster.py has the table):
    # within a factor 2 of all_reduce, all_gather and reduce_scatter from 4 KiB to 16 MiB. All of it on a quiet machine:
    # with other work on the cores ranks wait for time slices, and short messages take ten times as long and more.
    link=Link(alpha_s=14e-6, beta_s_per_byte=0.39e-9),
    devices_per_node=8,
    # a rank's "device" and its host are one memory and the same cores, so a copy is one in memory
    host=Host(
        memory_bytes=8_000_000_000,  # a choice: what is free on a laptop of 16 GB
        link=Link(alpha_s=2.5e-6 / _SHARE, beta_s_per_byte=8 / 25e9),
        flops_per_s=1.13e11 * _SHARE,
        memory_bandwidth_bytes_per_s=2 * 25e9 / 8,
        overhead_s=2.5e-6 / _SHARE,
    ),
)

# Eight accelerators of about an A100. 140e12 half-precision operations per second are what one of 312e12 peak reaches
# in large models (Narayanan et al., SC21, table 1: 135 to 163e12); 80 GB at 2.0e12 bytes per second: data sheet; 5 us
# per instruction: a choice, the order of a kernel launch.
_ACCELERATOR = Device(
    flops_per_s=140e12, memory_bytes=80_000_000_000, memory_bandwidth_bytes_per_s=2.0e12, overhead_s=5e-6
)
# PyTorch DTensor's cost model (tensor/_collective_utils.py): 6.6 us + 0.6 us per hop, 87.7 GiB/s; between hosts 2.7 us
# per hop and 0.22 of that bandwidth. The 6.6 us are spread over the hops of one ring: 7 hops of 8 ranks, 15 of 16.
_NVLINK = Link(alpha_s=(6.6e-6 + 7 * 0.6e-6) / 7, beta_s_per_byte=1 / (87.7 * 2**30))
_BETWEEN_NODES = Link(alpha_s=(6.6e-6 + 15 * 2.7e-6) / 15, beta_s_per_byte=1 / (0.22 * 87.7 * 2**30))

# The host of a DGX A100, data sheet: two processors of 64 cores (2.25 GHz, 16 double-precision operations per cycle)
# and 204.8 GB/s each, 1 TB; of both an eighth for each device. A device's link is PCIe 4.0 x16: 25e9 of its 31.5e9
# bytes per second, and 10 us to begin a copy: choices.
_DGX_HOST = Host(
    memory_bytes=1_000_000_000_000,
    link=Link(alpha_s=10e-6, beta_s_per_byte=1 / 25e9),
    flops_per_s=2 * 64 * 2.25e9 * 16 / 8,
    memory_bandwidth_bytes_per_s=2 * 204.8e9 / 8,
    overhead_s=5e-6,
)

GPU_NODE = Cluster(name="gpu_node", device=_ACCELERATOR, link=_NVLINK, devices_per_node=8, host=_DGX_HOST)
TWO_NODES = Cluster(
    name="two_nodes",
    device=_ACCELERATOR,
    link=_NVLINK,
    devices_per_node=8,
    node_count=2,
    node_link=_BETWEEN_NODES,
    host=_DGX_HOST,
)

CLUSTERS: tuple[Cluster, ...] = (LAPTOP, GPU_NODE, TWO_NODES)


def get_cluster(name: str | Cluster) -> Cluster:
    """The named profile: "laptop" (8 worker processes), "gpu_node" (8 accelerators) or "two_nodes" (twice that).

    A Cluster, such as a measured one, is its own profile. Raises ArgumentError, with the nearest name, otherwise.
    """
    if isinstance(name, Cluster):
        return name
    named = {cluster.name: cluster for cluster in CLUSTERS}
    return named[choice(*named)("get_cluster", "name", name)]


def cluster_for(device_num: int) -> Cluster:
    """The profile a plan is shown with unless another is asked for.

    >>> cluster_for(8).name, cluster_for(64).device_num
    ('laptop', 64)
    """
    laptop = get_cluster("laptop")
    return laptop if device_num <= laptop.device_num else get_cluster("two_nodes").with_nodes(-(-device_num // 8))
