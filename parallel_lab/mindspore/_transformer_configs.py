"""How a transformer is divided: the configurations of MindSpore 1.5 to 2.0, nn.transformer, which layers read.

    config = TransformerOpParallelConfig(data_parallel=2, model_parallel=4, recompute=TransformerRecomputeConfig(True))
    config.dp_mp_config              what attention and dense layers read: 2 parts of the batch, 4 of the width
    config.embedding_dp_mp_config    what embeddings read: the same, and whether the table is whole (vocab_emb_dp)

Plain counts, checked when they are set; a part is shared with the whole, so setting one sets both. `pipeline_stage`
and `optimizer_shard` set the parallel context as well (pipeline_stages, enable_parallel_optimizer). Names and defaults:
MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.checks import Check, checked, flag, instance, integer, number
from ..base.errors import ArgumentError
from ..base.hooks import current_world
from ..base.settings.context import frozen, get_auto_parallel_context, is_set, set_auto_parallel_context


class _Field:
    """An attribute that is checked when it is set. context: the setting of the parallel context that follows it."""

    def __init__(self, check: Callable[..., Any], context: str = "") -> None:
        self.check, self.context = check, context

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, owner: type) -> Any:
        return self if config is None else config.__dict__[f"_{self.name}"]

    def __set__(self, config: Any, value: Any) -> None:
        config.__dict__[f"_{self.name}"] = value = self.check(type(config).__name__, self.name, value)
        if self.context and config.sets_context:
            set_auto_parallel_context(**{self.context: value})


class _Part:
    """An attribute that one part holds, or several alike."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, owner: type) -> Any:
        return self if config is None else getattr(config.__dict__[self.parts[0]], self.name)

    def __set__(self, config: Any, value: Any) -> None:
        for part in self.parts:
            setattr(config.__dict__[part], self.name, value)


class _Config:
    """What the configurations share: their text."""

    sets_context = True

    def __str__(self) -> str:
        return "[ParallelConfig]\n" + "".join(f"{name}:{value}\n" for name, value in vars(self).items())


class OpParallelConfig(_Config):
    """Parts of the batch and of the width: `data_parallel` and `model_parallel`, each at least 1."""

    data_parallel, model_parallel = _Field(integer(1)), _Field(integer(1))

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1) -> None:
        self.data_parallel, self.model_parallel = data_parallel, model_parallel


class MoEParallelConfig(_Config):
    """An OpParallelConfig, `dpmp`, and parts of the experts, `expert_parallel`."""

    data_parallel, model_parallel = _Part("_dpmp"), _Part("_dpmp")
    expert_parallel = _Field(integer(1))

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1, expert_parallel: int = 1) -> None:
        self._dpmp = OpParallelConfig(data_parallel, model_parallel)
        self.expert_parallel = expert_parallel

    dpmp = property(lambda self: self._dpmp)


class EmbeddingOpParallelConfig(_Config):
    """An OpParallelConfig, `dp_mp_config`, and `vocab_emb_dp`: True for a whole table and parts of the batch, False for
    model_parallel parts of the table's rows.
    """

    data_parallel, model_parallel = _Part("_dp_mp_config"), _Part("_dp_mp_config")
    vocab_emb_dp = _Field(flag)

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1, vocab_emb_dp: bool = True) -> None:
        self._dp_mp_config = OpParallelConfig(data_parallel, model_parallel)
        self.vocab_emb_dp = vocab_emb_dp

    dp_mp_config = property(lambda self: self._dp_mp_config)


class TransformerRecomputeConfig(_Config):
    """Whether blocks are recomputed in the backward pass, and the options of `Cell.recompute`."""

    recompute, parallel_optimizer_comm_recompute = _Field(flag), _Field(flag)
    mp_comm_recompute, recompute_slice_activation = _Field(flag), _Field(flag)

    def __init__(
        self,
        recompute: bool = False,
        parallel_optimizer_comm_recompute: bool = False,
        mp_comm_recompute: bool = True,
        recompute_slice_activation: bool = False,
    ) -> None:
        self.recompute = recompute
        self.parallel_optimizer_comm_recompute = parallel_optimizer_comm_recompute
        self.mp_comm_recompute = mp_comm_recompute
        self.recompute_slice_activation = recompute_slice_activation


class _PipeLineConfig(_Config):
    """Stages and micro-batches of a pipeline."""

    pipeline_stage, micro_batch_num = _Field(integer(1), "pipeline_stages"), _Field(integer(1))

    def __init__(self, pipeline_stage: int = 1, micro_batch_num: int = 1) -> None:
        self.pipeline_stage, self.micro_batch_num = pipeline_stage, micro_batch_num


class _UnsetPipeline(_PipeLineConfig):
    sets_context = False


_RECOMPUTE = instance((bool, TransformerRecomputeConfig), "A TransformerRecomputeConfig or a bool")
default_transformer_recompute_config = TransformerRecomputeConfig()


class TransformerOpParallelConfig(_Config):
    """How a whole transformer is divided.

    data_parallel, model_parallel, expert_parallel  parts of batch, width and experts
    pipeline_stage, micro_batch_num  of the pipeline; sets pipeline_stages of the parallel context
    recompute          a TransformerRecomputeConfig, or a bool
    optimizer_shard    sets enable_parallel_optimizer of the parallel context
    gradient_aggregation_group  how many groups of layers send their gradients together
    vocab_emb_dp       see EmbeddingOpParallelConfig
    """

    _pipeline: type[_PipeLineConfig] = _PipeLineConfig
    recompute, gradient_aggregation_group = _Field(_RECOMPUTE), _Field(integer(1))
    optimizer_shard = _Field(flag, "enable_parallel_optimizer")
    data_parallel, model_parallel = (_Part("_embed_dp_mp_config", "_moe_config") for _ in range(2))
    vocab_emb_dp, expert_parallel = _Part("_embed_dp_mp_config"), _Part("_moe_config")
    pipeline_stage, micro_batch_num = _Part("_pp_config"), _Part("_pp_config")

    def __init__(
        self,
        data_parallel: int = 1,
        model_parallel: int = 1,
        expert_parallel: int = 1,
        pipeline_stage: int = 1,
        micro_batch_num: int = 1,
        recompute: bool | TransformerRecomputeConfig = default_transformer_recompute_config,
        optimizer_shard: bool = False,
        gradient_aggregation_group: int = 4,
        vocab_emb_dp: bool = True,
    ) -> None:
        self.recompute, self.optimizer_shard = recompute, optimizer_shard
        self.gradient_aggregation_group = gradient_aggregation_group
        self._embed_dp_mp_config = EmbeddingOpParallelConfig(data_parallel, model_parallel, vocab_emb_dp)
        self._pp_config = self._pipeline(pipeline_stage, micro_batch_num)
        self._moe_config = MoEParallelConfig(data_parallel, model_parallel, expert_parallel)

    embedding_dp_mp_config = property(lambda self: self._embed_dp_mp_config)
    dp_mp_config = property(lambda self: self._embed_dp_mp_config.dp_mp_config)
    moe_parallel_config = property(lambda self: self._moe_config)


class _Default(TransformerOpParallelConfig):
    """A configuration that leaves the context as it is: that of layers which are given no other."""

    sets_context, _pipeline = False, _UnsetPipeline


class MoEConfig:
    """Experts of a layer where `expert_num` is above 1; the balance loss is multiplied by `aux_loss_factor`."""

    @checked(
        expert_num=integer(1),
        capacity_factor=number(1),
        aux_loss_factor=number(0, 1, above=True, below=True),
        num_experts_chosen=integer(1),
        expert_group_size=integer(1) | None,
        group_wise_a2a=flag,
        comp_comm_parallel=flag,
        comp_comm_parallel_degree=integer(1),
    )
    def __init__(
        self,
        expert_num: int = 1,
        capacity_factor: float = 1.1,
        aux_loss_factor: float = 0.05,
        num_experts_chosen: int = 1,
        expert_group_size: int | None = None,
        group_wise_a2a: bool = False,
        comp_comm_parallel: bool = False,
        comp_comm_parallel_degree: int = 2,
    ) -> None:
        if num_experts_chosen > expert_num:
            what = f"num_experts_chosen={num_experts_chosen} of expert_num={expert_num}"
            raise ArgumentError(what, where="MoEConfig", allowed="At most all of them")
        vars(self).update({name: value for name, value in locals().items() if name not in ("self", "what")})


default_dpmp_config = OpParallelConfig()
default_moeparallel_config = MoEParallelConfig()
default_embedding_parallel_config = EmbeddingOpParallelConfig()
default_transformer_config = _Default()
default_moe_config = MoEConfig()

DP_MP = instance((OpParallelConfig, MoEParallelConfig), "An OpParallelConfig: config.dp_mp_config of the whole's")
OF_EMBEDDING = instance(EmbeddingOpParallelConfig, "An EmbeddingOpParallelConfig: config.embedding_dp_mp_config")
OF_ALL = instance(TransformerOpParallelConfig, "A TransformerOpParallelConfig")
EXPERTS: Check = instance(MoEConfig, "A MoEConfig")


def check_config(where: str, config: Any) -> None:
    """Raise ArgumentError for more parts than there are devices, or other stages than those of the context."""
    stages = get_auto_parallel_context("pipeline_stages")
    if getattr(config, "pipeline_stage", stages) != stages:
        given = f"pipeline_stage={config.pipeline_stage}, and pipeline_stages={stages} in the parallel context"
        raise ArgumentError(given, where=where, allowed="One number of stages")
    now, world = frozen(), current_world()
    devices = now.device_num if is_set("device_num") or world is None else world.world_size  # reset by a script
    parts = config.data_parallel * config.model_parallel * stages
    if now.parallel_mode in ("semi_auto_parallel", "auto_parallel") and parts > devices:
        given = f"data_parallel={config.data_parallel}, model_parallel={config.model_parallel}, {stages} stages"
        raise ArgumentError(given, where=where, allowed=f"A product of at most {devices}, the devices")
