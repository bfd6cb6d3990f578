"""Clusters of any size without a device: closed forms of transformers, the prediction of a plan, the outer search.

search_plans("gpt3_175b", get_machine("dgx_a100", 1024), batch=1536).text()
predict_point("gpt3_175b", PlanPoint(8, 8, 16, 1, 64), get_machine("dgx_a100", 1024)).explain()
choose_stages(time_s, layers=8, devices=4, micro_batches=16)         Alpa's stages
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .alpa import StageChoice, alpa_cost, alpa_pipeline_s, choose_stages
from .clusters import MACHINES, Machine, get_machine, machine_names, read_machine
from .models import TRANSFORMERS, Transformer, get_transformer
from .outer import Found, Verdict, search_plans, space
from .point import PlanPoint, Prediction
from .predict import predict_point
