"""Clusters of any size without a device: closed forms of transformers, the prediction of a plan, the outer search.

search_plans("gpt3_175b", get_machine("dgx_a100", 1024), batch=1536).text()
predict_point("gpt3_175b", PlanPoint(8, 8, 16, 1, 64), get_machine("dgx_a100", 1024)).explain()
choose_stages(time_s, layers=8, devices=4, micro_batches=16)         Alpa's stages

And of what sequence, context and expert parallelism divide, for today's decoders:

get_decoder("deepseek_v3").active_parameters; Degrees(2048, stages=16, expert=64).states(get_decoder("deepseek_v3"), 1)
report_run("llama3-405b-16k").text()                                  a published run, next to its prediction
AttentionMessages(1, 8192, heads=32, head_size=128, ranks=8, kv_heads=8).ring(); dispatch_bytes(4096, 7168, 256, 8, 64)
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .alpa import StageChoice, alpa_cost, alpa_pipeline_s, choose_stages
from .clusters import MACHINES, Machine, Reached, get_machine, machine_names, read_machine
from .decoder_point import WAYS, DecoderPoint, decoder_space
from .decoders import DECODERS, Decoder, LatentAttention, Rate, get_decoder
from .degrees import Degrees, GradientRule, LossMeans, RankStates, axis_groups, loss_means
from .expert_messages import (
    PaddedExchange,
    different_places,
    dispatch_bytes,
    least_hidden_width,
    padded_exchange,
    row_bytes,
)
from .hub_configs import decoder_of_config, read_decoder
from .models import TRANSFORMERS, Transformer, get_transformer
from .outer import Found, search_plans, space
from .point import PlanPoint, Prediction
from .predict import get_model, predict_point
from .published import Run, published_rows, published_run, read_run
from .run_messages import RunMessages, run_messages
from .run_reports import RunReport, changed_run, chip_errors, error_bar_text, report_run, reports, run_table
from .sequence_messages import (
    AttentionMessages,
    BalancedRing,
    Hybrid,
    LayerCollectives,
    RingStep,
    Sent,
    least_hidden_tokens,
    sequence_parallel_messages,
)
from .verdicts import Verdict, Verdicts
