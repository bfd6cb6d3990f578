"""Which groups of a plan lie where, and what their messages take: many plans at once.

    groups_of(cluster, columns)["dp"].all_gather(size_bytes)       seconds, one for each plan

Ranks fill the nodes in order, the tensor axis fastest (`Degrees`). A group of n ranks, s apart, has g = node / s of
them in a node. A ring through it enters and leaves a node once for each of the g members' own links, so it runs at

    min(the link in a node, g times a device's link between nodes)

which is why eight devices of a node share a gradient eight times as fast as one of each node does. What exchanges
pairs (all_to_all) sends (n - g) / n of its bytes over the device's own link between nodes, the rest inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.cluster import Cluster
from .decoder_point import Columns


@dataclass(frozen=True)
class Group:
    """Groups of one axis, an entry for each plan.

    size, inside, nodes   ranks in all, in a node, and on how many nodes
    alpha_s, beta_s       seconds of a ring's step to start, and of a byte on its slowest piece
    """

    size: np.ndarray
    inside: np.ndarray
    nodes: np.ndarray
    alpha_s: np.ndarray
    beta_s: np.ndarray
    cluster: Cluster

    @property
    def _starts_s(self) -> np.ndarray:
        """Starts of a ring of a level each: through a node, through the nodes."""
        link, node = self.cluster.link, self.cluster.node_link or self.cluster.link
        return (self.inside - 1) * link.alpha_s + (self.nodes - 1) * node.alpha_s

    def all_gather(self, whole_bytes: Any) -> np.ndarray:
        """Seconds until each has `whole_bytes`."""
        return self._starts_s + (self.size - 1) / self.size * whole_bytes * self.beta_s

    def reduce_scatter(self, whole_bytes: Any) -> np.ndarray:
        """Seconds to add up `whole_bytes`, a piece on each."""
        gamma = self.cluster.device.gamma_s_per_byte
        return self.all_gather(whole_bytes) + (self.size - 1) / self.size * whole_bytes * gamma

    def all_reduce(self, size_bytes: Any) -> np.ndarray:
        """Both."""
        return self.reduce_scatter(size_bytes) + self.all_gather(size_bytes)

    def all_to_all(self, size_bytes: Any, copies: Any = 1.0) -> np.ndarray:
        """Each sends `size_bytes` in equal pieces.  copies: the share of what leaves the node that is sent"""
        link, node = self.cluster.link, self.cluster.node_link or self.cluster.link
        near = (self.inside - 1) / self.size * size_bytes * link.beta_s_per_byte
        far = (self.size - self.inside) / self.size * size_bytes * copies * node.beta_s_per_byte
        return self._starts_s + near + far

    def send(self, size_bytes: Any) -> np.ndarray:
        """One to its neighbour."""
        return self.alpha_s + size_bytes * self.beta_s


def _groups(cluster: Cluster, devices: np.ndarray, axes: dict[str, tuple[Any, Any]]) -> dict[str, Group]:
    """All axes at once, a row for each: what numpy does before it computes takes longer than so few numbers."""
    node, both = cluster.devices_per_node, np.empty((2, len(axes), len(devices)), dtype=np.int64)
    for row, (stride, size) in enumerate(axes.values()):
        both[0, row], both[1, row] = stride, size
    stride, size = both
    alone = (stride * size <= node) & (node % np.maximum(1, stride * size) == 0) | (devices <= node)
    inside = np.where(alone, size, np.where(node % np.maximum(1, stride) == 0, np.clip(node // stride, 1, size), 1))
    link, far = cluster.link, cluster.node_link or cluster.link
    spans = inside < size
    beta = np.where(spans, np.maximum(link.beta_s_per_byte, far.beta_s_per_byte / inside), link.beta_s_per_byte)
    nodes, alpha = -(-size // inside), np.where(spans, far.alpha_s, link.alpha_s)
    return {
        name: Group(size[row], inside[row], nodes[row], alpha[row], beta[row], cluster) for row, name in enumerate(axes)
    }


def groups_of(cluster: Cluster, x: Columns) -> dict[str, Group]:
    """{axis: its groups}: of the two grids of `Degrees`; "exchange": ranks of a sequence that exchange heads; "dp" and
    "edp": replicas that divide what the level says, "... replicas": groups of HSDP, "... whole": all replicas.
    """
    t, c, et, e = x.tensor, x.context, x.expert_tensor, x.expert
    devices = x.devices
    copies, of_experts = x.data * c, x.data * c * t // (e * et)
    outer, outer_experts = x.replicas, np.minimum(x.replicas, np.maximum(1, of_experts))
    outer_experts = np.where(of_experts % outer_experts == 0, outer_experts, 1)

    u = x.exchanged
    axes = {
        "tp": (1, t),
        "exchange": (t, u),
        "cp": (t * u, c // u),
        "etp": (1, et),
        "ep": (et, e),
        "dp": (t, copies // outer),
        "dp replicas": (t * (copies // outer), outer),
        "dp whole": (t, copies),
        "edp": (e * et, of_experts // outer_experts),
        "edp replicas": (e * et * (of_experts // outer_experts), outer_experts),
        "edp whole": (e * et, of_experts),
        "pp": (t * copies, x.stages),
    }
    return _groups(cluster, devices, axes)
