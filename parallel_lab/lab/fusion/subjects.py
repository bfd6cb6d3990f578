"""What the Fusion Lab looks at: a puzzle on paper, and networks that train.

    subject = get_subject("chain")
    job = subject.job()                                    # network, loss, optimizer, batches
    plan = job.compile(devices=4, parallel_mode="data_parallel", comm_fusion={...}, ids={})

"golf" is a list of ten gradients with a line of its own; "chain" is a network whose gradients have the same
proportions, a quarter of the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.cluster import Link
from ...base.settings.current import default_settings
from ...cost.overlap import Gradient
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ..shared import jobs
from ..shared.jobs import JOBS, Subject, named
from ..shared.networks import NETWORKS

MB = 1024 * 1024  # bytes; what MindSpore calls a MB

# The puzzle "fusion golf": ten gradients in the order of backward, 1 ms of backward each, messages of 1 ms + 0.25 ms
# per MB.
GOLF = tuple(Gradient(f"g{n}", mb * MB, 1e-3) for n, mb in enumerate((8, 1, 1, 4, 2, 8, 16, 8, 16, 4)))
GOLF_LINE = Link(alpha_s=1e-3, beta_s_per_byte=0.25e-3 / MB)


@dataclass(frozen=True, eq=False)
class Job(jobs.Job):
    """One that is compiled with a fusion."""

    def compile(
        self,
        *,
        devices: int,
        parallel_mode: str,
        comm_fusion: Mapping[str, Any],
        ids: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> Plan:
        """The plan for that many ranks, the batch split among them. settings: further fields of ParallelConfig;
        comm_fusion: as of `set_auto_parallel_context`; ids: {parameter: its comm_fusion}, where one was chosen.
        """
        for parameter in self.net.trainable_params():
            if ids:
                parameter.comm_fusion = ids[parameter.name]
        local = parallel_mode == "data_parallel"
        rows = len(self.batches[0][0]) // devices
        inputs = tuple(part[:rows] for part in self.batches[0]) if local else self.batches[0]
        how = {"gradients_mean": True} if local else {"dataset_strategy": "full_batch"}
        how |= {"device_num": devices, "parallel_mode": parallel_mode, "comm_fusion": dict(comm_fusion), **settings}
        with default_settings():
            return compile_network(self.net, *inputs, loss=self.loss, optimizer=self.optimizer, **how)

    def positions(self, sent: tuple[str, ...], parallel_mode: str) -> tuple[str, ...]:
        """Parameters in the order in which index counts: the optimizer's, in automatic modes that of `sent`."""
        if parallel_mode != "data_parallel":
            return sent
        return tuple(p.name for p in self.optimizer.parameters if p.name in set(sent))


def _job(name: str, *data: str) -> Callable[[], Job]:
    return lambda: Job(**vars(JOBS[name](*data)))


def _network(name: str, data: str, note: str) -> Subject:
    """A network of the labs, with the data of that name."""
    return Subject(name, NETWORKS[name].label, note, _job(name, data), data)


_GOLF = "ten gradients on paper: 1 ms of backward each, messages of 1 ms + 0.25 ms per MiB"
_CHAIN = "ten Dense layers without bias; weights of 0.25 MiB to 4 MiB, a quarter of golf's"
_SUBJECTS = (
    Subject("golf", "fusion golf (puzzle)", _GOLF),
    Subject("chain", "a quarter of golf's sizes, a network", _CHAIN, _job("chain"), "chain"),
    _network("dense", "digits", "two Dense layers on handwritten digits"),
    _network("convnet", "pictures", "two convolutions with batch norm on colour digits"),
    _network("transformer", "text", "a one-block GPT that learns to count in words"),
)
SUBJECTS = {subject.name: subject for subject in _SUBJECTS}


def get_subject(name: str) -> Subject:
    """The subject of that name. Raises ArgumentError for another one."""
    return named(SUBJECTS, name, "subject", "FusionLab")
