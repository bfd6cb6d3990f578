"""`AutoParallel`: a Cell or a function that runs compiled, with settings of its own.

    parallel_net = AutoParallel(train_step, parallel_mode="semi_auto")
    parallel_net.dataset_strategy("full_batch")
    loss = parallel_net(images, labels)

The settings are the object's. Defaults and checks: MindSpore 2.6, parallel.auto_parallel.AutoParallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..base.checks import checked, choice, function
from ..base.errors import ArgumentError, ContextKeyError, NotBuiltYet, shorten
from ..base.hooks import current_tracer
from ..base.settings.checks import HSDP, PIPELINE, SETTINGS, check_comm_fusion, check_dataset_strategy, json_path, path
from ..base.settings.config import ParallelConfig
from ..base.settings.context import set_auto_parallel_context
from ..base.settings.tables import ALGORITHM
from ..graph.plan import Plan
from ..nn.cell import Cell
from .compiled import CompiledFunction, positional
from .run_cell import refuse_on_tape

MODES = {
    "semi_auto": {"parallel_mode": "semi_auto_parallel"},
    "sharding_propagation": {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"},
    "recursive_programming": {"parallel_mode": "auto_parallel", "search_mode": "recursive_programming"},
}

SHOWN = "In a training step, print(ops.norm(gradient)) shows the norm on every rank"


def set_op_strategy_config(mode: str = "SAVE", path: str = "") -> None:
    """Write the strategies of the operators that are compiled from now on ("SAVE"), or take them from a file ("LOAD").

    path  absolute, ends in .json; its folder is made

    The forms of `AutoParallel.save_operator_strategy_file` and `load_operator_strategy_file` for the context. Raises
    ContextKeyError (a KeyError) for another path or mode (MindSpore, set_op_strategy_config).
    """
    path = json_path("set_op_strategy_config", "path", path)
    if mode not in ("SAVE", "LOAD"):
        what, where = f"mode={shorten(mode)}", "set_op_strategy_config"
        raise ContextKeyError(what, where=where, allowed="'SAVE' or 'LOAD'")
    set_auto_parallel_context(**{f"strategy_ckpt_{mode.lower()}_file": path})


class AutoParallel(Cell):
    """A network or function that is split over the ranks when it is called.

    network        a Cell, or a function such as a training step that asks for gradients and calls an optimizer
    parallel_mode  "semi_auto": strategies given by shard(), batch-parallel without one; "sharding_propagation":
                   given ones spread; "recursive_programming": every product is halved again and again

    Called with slices of the inputs (whole after dataset_strategy("full_batch")). Outside training it returns results
    as inputs are given: rows over all ranks, or whole; in training, or with a strategy per input, this rank's slices.
    """

    @checked(network=function("A Cell or a function"), parallel_mode=choice(*MODES))
    def __init__(self, network: Callable, parallel_mode: str = "semi_auto") -> None:
        super().__init__(auto_prefix=False)
        if isinstance(network, AutoParallel):
            what = "the network is an AutoParallel already"
            raise ArgumentError(what, where="AutoParallel", hint="Wrap what it wraps")
        # not through __setattr__: the network keeps its own name and its parameters theirs
        self.__dict__["network"] = network
        if isinstance(network, Cell):
            self._cells["network"] = network
        self.parallel_mode = parallel_mode
        self._config: dict[str, Any] = {"enable_alltoall": True, "gradient_accumulation_shard": False}
        self._config |= MODES[parallel_mode]
        self.__dict__["_compiled"] = CompiledFunction(network, self.settings, returns="as fed")

    def settings(self) -> dict[str, Any]:
        """The options of compiling: the fields of ParallelConfig but those of the world and of `set_algo_parameters`,
        which are the context's, and four without a method.
        """
        kept = ("device_num", "global_rank", *ALGORITHM, "fusion_index", "cost_model_fusion", "redistribution")
        kept += ("recursive_most_devices",)
        defaults = {f.name: f.default for f in fields(ParallelConfig) if f.name not in kept}
        return {**defaults, **self._config}

    @property
    def plan(self) -> Plan | None:
        """The plan that ran last; None before the first call."""
        return self._compiled.plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_tracer.get() is not None:  # inside of what is compiled, by the settings of that
            return self.network(*args, **kwargs)
        refuse_on_tape(repr(self))
        return self._compiled(*positional(getattr(self.network, "construct", self.network), args, kwargs))

    def construct(self, *args: Any) -> Any:
        return self.network(*args)

    # ---- settings ----

    @checked("", SETTINGS, config=check_comm_fusion)
    def comm_fusion(self, config: dict[str, Any]) -> None:
        """Which gradients share a message, as in the context: {"allreduce": {"mode": "size", "config": 32}}."""
        self._config["comm_fusion"] = config

    @checked("", SETTINGS, config=check_dataset_strategy)
    def dataset_strategy(self, config: str | tuple[Any, ...]) -> None:
        """How inputs are fed: "data_parallel" (default), "full_batch", or one tuple of splits or Layout per input."""
        self._config["dataset_strategy"] = config

    @checked("", SETTINGS, **HSDP)
    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Optimizer parallel: ranks that would hold copies of a parameter's slice share it, with its optimizer states.

        shard_size       how many ranks share one split; -1: all that hold the same slice
        threshold        KB; smaller parameters stay whole
        optimizer_level  "level1": parameters and states; "level2": the buffer of accumulated gradients too; "level3":
                         parameters are gathered again for backward and not kept from forward

        Raises ContextError or a subclass for a value out of range.
        """
        self._config |= {"enable_parallel_optimizer": True, "optimizer_weight_shard_size": shard_size}
        self._config |= {"parallel_optimizer_threshold": threshold, "optimizer_level": optimizer_level}

    @checked("", SETTINGS, **PIPELINE)
    def pipeline(
        self, stages: int = 1, output_broadcast: bool = False, interleave: bool = False, scheduler: str = "1f1b"
    ) -> None:
        """Run the network in pipeline stages: its micro-batches by nn.PipelineCell, its parts by Cell.pipeline_stage.

        stages            how many; each has an equal part of the ranks
        output_broadcast  in inference every rank gets the last stage's result; False: the others get None
        interleave        stages have several chunks of the network: data that flows to an earlier stage begins the next
        scheduler         order of the work: "1f1b", "gpipe", "zero_bubble_v"

        Raises ContextError for MindSpore's other schedulers (seqpipe, seqvpp, seqsmartvpp), by name.
        """
        self._config |= {"pipeline_stages": stages, "pipeline_interleave": interleave, "pipeline_scheduler": scheduler}
        self._config["pipeline_result_broadcast"] = output_broadcast

    @checked("", SETTINGS, file_path=path)
    def save_param_strategy_file(self, file_path: str) -> None:
        """Write the layouts of the parameters there once the network is compiled."""
        self._config["strategy_ckpt_save_file"] = file_path

    @checked("", SETTINGS, file_path=path)
    def load_param_strategy_file(self, file_path: str) -> None:
        """Take strategies from a file that was saved before."""
        self._config["strategy_ckpt_load_file"] = file_path

    @checked("", SETTINGS, file_path=json_path)
    def save_operator_strategy_file(self, file_path: str) -> None:
        """Write the strategies of the operators there (an absolute path that ends in .json)."""
        self._config["strategy_ckpt_save_file"] = file_path

    @checked("", SETTINGS, file_path=json_path)
    def load_operator_strategy_file(self, file_path: str) -> None:
        """Take the operators' strategies from such a file."""
        self._config["strategy_ckpt_load_file"] = file_path

    @checked("", SETTINGS, file_path=path)
    def set_group_ckpt_save_file(self, file_path: str) -> None:
        """Write there which ranks hold this rank's slices, for `restore_group_info_list`, once it is compiled."""
        self._config["group_ckpt_save_file"] = file_path

    def enable_fp32_communication(self) -> None:
        """Sum half-precision gradients in single precision: the default here."""
        self._config["gradient_fp32_sync"] = True

    def disable_gradient_fp32_sync(self) -> None:
        """Sum half-precision gradients as they are."""
        self._config["gradient_fp32_sync"] = False

    def enable_gradients_mean(self) -> None:
        """Divide each synchronised gradient by the ranks that were summed."""
        self._config["gradients_mean"] = True

    def disable_loss_repeated_mean(self) -> None:
        """Start gradients with 1 instead of 1 / (ranks that hold the same loss): they become that many times larger."""
        self._config["loss_repeated_mean"] = False

    def no_init_parameters_in_compile(self) -> None:
        """Parameters are drawn when they are first read, never by compiling: nothing to switch off."""

    def disable_strategy_file_only_for_trainable_params(self) -> None:
        """Write parameters that are not trained to the strategy file too."""
        self._config["strategy_only_trainable_params"] = False

    @checked("", SETTINGS, file_path=path | None)
    def transformer_opt(self, file_path: str | None) -> None:
        """Accepted: options that speed up accelerators, and change no result."""

    def print_local_norm(self) -> None:
        """Norms of the local gradients."""
        self._not_here("print_local_norm", SHOWN)

    def dump_local_norm(self, file_path: str) -> None:
        """Norms of the local gradients, in a file."""
        self._not_here("dump_local_norm", SHOWN)

    def _not_here(self, name: str, hint: str) -> None:
        raise NotBuiltYet(f"{name} is not available", where="AutoParallel", hint=hint)

    def __repr__(self) -> str:
        return f"AutoParallel({type(self.network).__name__}, {self.parallel_mode!r})"
