"""Published training runs: what their publishers print, read as a model, a machine and a plan.

    run = published_run("llama3-405b-16k")
    run.decoder.name, run.machine.cluster.name, run.point.text(), run.step_s
    read_run({"id": "mine", "model": "llama3_8b", "hardware": "DGX H100", "devices": 64, ...})     a row of its form

A row says degrees and little else. What it leaves open follows from rules that know no run:

    recompute      the least with which the plan fits into the memory
    micro-batch    one sequence with stages, otherwise all that a copy has in a step; torchtitan's configuration: as
                   many micro-batches as parts of a pipeline
    batch          8 micro-batches a stage
    degrees        none given: the fastest plan of the outer search
    software       PUBLISHERS, and the year: before 2023 scores are stored, nothing overlaps, level 0

`data/published_runs/SOURCE.md` says where the rows come from. All that is computed of a run is predicted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

from ...base.checks import choice, integer, number
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.files import shipped_folder
from ...base.plain_json import read_json
from .clusters import Machine, get_machine
from .decoder_point import SCHEDULES, Columns, DecoderPoint, decoder_misfit
from .decoder_pricing import price
from .decoders import DECODERS, Decoder
from .models import TRANSFORMERS
from .outer import search_plans

LARGEST_FILE = 1 << 20  # bytes
COUNTS = {  # what a published number of operations counts
    "causal": "half of the scores",
    "all": "all scores",
    "hardware": "all scores, and what is computed again",
}
_OF_A_STAGE = 8  # micro-batches, where no batch is given
DEGREES = {"tp", "pp", "cp", "ep", "etp", "dp", "fsdp", "dp_pods", "chunks", "micro_batch"}
_RECOMPUTE = {True: ("none", "norms_and_product", "full"), False: ("none", "attention", "full")}  # by flash attention
# word of the hardware: machine; the first that is found
_CHIPS = (
    *(
        ("gb300", "gb300"),
        ("b300", "dgx_b300"),
        ("gb200", "gb200"),
        ("b200", "dgx_b200"),
        ("h200", "dgx_h200"),
        ("h800", "h800"),
        ("500 w", "h100_500w"),
    ),
    *(("roce", "h100_roce"), ("h100", "dgx_h100"), ("a100 40", "a100_40gb"), ("a100", "dgx_a100")),
    *(("910", "atlas_910"), ("v5p", "tpu_v5p"), ("v4", "tpu_v4"), ("v100", "dgx2_v100")),
)


@dataclass(frozen=True)
class Publisher:
    """What a publisher's software does, where a row does not say it.

    words      of its sources
    counts     one of COUNTS
    fields     of a DecoderPoint
    of_stages  a pipeline's micro-batches are as many as its parts
    compiled   elementwise operators are one kernel only where "compiled", fp8 or asynchronous TP is said
    recompute  where a row says nothing: a kind, or "": the least that fits
    """

    words: tuple[str, ...]
    counts: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    of_stages: bool = False
    compiled: bool = False
    recompute: str = ""


_NEMO = {"one_copy": True, "tensor_overlap": True, "states": "bf16_gradients", "gradient_bytes": 2}
_DUAL = {"schedule": "dualpipe"}
_OLD = {"flash": False, "overlap": False, "sequence_parallel": False, "level": 0}
_BEFORE_2023 = Publisher(("bigscience",), "hardware", _OLD)  # and others of that time
PUBLISHERS: tuple[Publisher, ...] = (
    Publisher(
        ("torchtitan",), "all", {"states": "float32", "level": 3, "kept_messages": True}, True, True, "alternate"
    ),
    Publisher(("NeMo", "DGX Cloud"), "causal", _NEMO),
    Publisher(("DeepSeek-V3",), "causal", {"one_copy": True, "node_limit": 4, "states": "bf16_moments", **_DUAL}),
    Publisher(("Llama 3",), "causal", {"way": "gathered", "schedule": "interleaved", "chunks": 8}),
    _BEFORE_2023,
)
_LATER = Publisher((), "all")


@dataclass(frozen=True)
class Run:
    """A published run.

    row               as it was given
    decoder, machine  None, with `why`: not known here
    point             None, with `why`: nothing can be predicted
    counts            what its TFLOP/s count, one of COUNTS
    assumed           what the row leaves open, in words
    """

    row: Mapping[str, Any]
    decoder: Decoder | None
    machine: Machine | None
    point: DecoderPoint | None
    counts: str
    assumed: tuple[str, ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        """Its id."""
        return str(self.row["id"])

    @property
    def measured(self) -> Mapping[str, Any]:
        """What was printed, by name."""
        return self.row.get("measured") or {}

    @property
    def bar(self) -> bool:
        """Whether its rate and degrees were read, not recalled."""
        return bool(self.row.get("bar"))

    @property
    def of_attention(self) -> bool:
        """Whether it is one attention, not a step of training."""
        return str(self.row["model"]).startswith("attention")

    @property
    def both_passes(self) -> bool:
        """Whether attention's backward pass is measured, too."""
        return "backward" in str(self.row.get("note", ""))

    def flops_per_token(self, counts: str = "") -> float:
        """Operations of a token, counted as the publisher does, or otherwise."""
        assert self.decoder is not None
        counts, tokens = counts or self.counts, self.row["seq_length"]
        own = self.decoder.flops_per_token(tokens, causal=counts == "causal")
        if counts == "hardware" and self.point is not None:
            d, all_scores = (
                self.decoder,
                2 * tokens * self.decoder.layers * (self.decoder.score_width + self.decoder.value_width),
            )
            layers = (own - 6 * d.vocab_size * d.hidden) / 3
            return own + {"full": layers, "attention": all_scores}.get(self.point.recompute, 0)
        return own

    @property
    def step_s(self) -> float | None:
        """Seconds of a step as measured: printed, or from the rate that was."""
        found, batch = self.measured, self.row.get("batch_sequences") or (self.point.batch if self.point else None)
        if "step_s" in found:
            return float(found["step_s"])
        if "iterations_per_s" in found:
            return 1 / found["iterations_per_s"]
        if self.decoder is None or not batch or not self.row.get("seq_length"):
            return None
        tokens, devices = batch * self.row["seq_length"], self.row["devices"]
        if "tokens_per_s_per_device" in found:
            return tokens / (found["tokens_per_s_per_device"] * devices)
        if "tokens_per_s" in found:
            return tokens / found["tokens_per_s"]
        if "tflops_per_device" in found:
            return tokens * self.flops_per_token() / (found["tflops_per_device"] * 1e12 * devices)
        if "mfu_percent" in found and self.machine is not None:
            counts = "causal" if self.counts == "causal" else "all"
            peak = self.machine.peak_flops_per_s * found["mfu_percent"] / 100
            return tokens * self.flops_per_token(counts) / (peak * devices)
        if "device_hours" in found and "tokens" in found:
            return tokens * found["device_hours"] * 3600 / devices / found["tokens"]
        if "days" in found and "tokens" in found:
            return tokens * found["days"] * 86_400 / found["tokens"]
        return None

    @property
    def formula_error(self) -> float | None:
        """The formula's operations of a token over what the printed TFLOP/s and the printed rate imply, less 1; None
        where not both are printed.
        """
        found, row = self.measured, self.row
        if self.decoder is None or "tflops_per_device" not in found:
            return None
        if "tokens_per_s_per_device" in found:
            rate = found["tokens_per_s_per_device"]
        elif "step_s" in found:
            rate = row["batch_sequences"] * row["seq_length"] / found["step_s"] / row["devices"]
        else:
            return None
        return self.flops_per_token() * rate / (found["tflops_per_device"] * 1e12) - 1


@cache
def published_rows() -> dict[str, dict[str, Any]]:
    """{id: row} of the file that comes with the package."""
    path = shipped_folder("data") / "published_runs" / "runs.json"
    data = read_json(path, ArgumentError, where="published runs", hint="", max_bytes=LARGEST_FILE)
    return {row["id"]: row for row in data["rows"]}


@cache
def published_run(name: str) -> Run:
    """A run of the file. Raises ArgumentError, with the nearest id, otherwise."""
    rows = published_rows()
    return read_run(rows[choice(*rows)("published_run", "run", name)])


def read_run(row: Mapping[str, Any]) -> Run:
    """A row of the file's form, read. Raises ArgumentError for one that says what cannot be."""
    if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
        raise ArgumentTypeError(shorten(row), where="published run", allowed="An object with id, model, hardware, ...")
    where = f"published run {row['id']!r}"
    integer(1, 10**7)(where, "devices", row.get("devices"))
    for name in ("seq_length", "batch_sequences"):
        if row.get(name) is not None:
            integer(1, 10**9)(where, name, row[name])
    parallel, measured = (_part(row, name, where) for name in ("parallel", "measured"))
    for name in DEGREES & parallel.keys():
        integer(1, 10**7)(where, name, parallel[name])
    choice(None, *SCHEDULES)(where, "schedule", parallel.get("schedule"))
    for name, value in measured.items():
        number(0, above=True)(where, name, value)
    publisher = publisher_of(row)
    decoder, machine = _decoder(row), _machine(row)
    if decoder is None or machine is None:
        what = f"model {row.get('model')!r}" if decoder is None else f"hardware {row.get('hardware')!r}"
        return Run(row, decoder, machine, None, publisher.counts, why=f"{what} is not known here")
    if str(row["model"]).startswith("attention of "):
        return Run(row, decoder, machine, _kernel(row), publisher.counts)
    if row.get("seq_length") is None:
        return Run(row, decoder, machine, None, publisher.counts, why="no sequence length is given")
    return _planned(row, decoder, machine, publisher, where)


def _part(row: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """An object of a row, or an empty one. Raises ArgumentTypeError for anything else."""
    part = row.get(name) or {}
    if not isinstance(part, Mapping):
        raise ArgumentTypeError(f"{name} {shorten(part)}", where=where, allowed="An object: names and numbers")
    return part


def publisher_of(row: Mapping[str, Any]) -> Publisher:
    """By a word of the source, or by its year."""
    source = str(row.get("source", ""))
    for publisher in PUBLISHERS:
        if any(word.lower() in source.lower() for word in publisher.words):
            return publisher
    years = [int(year) for year in re.findall(r"\b(20[012]\d)\b", source)]
    years += [2000 + int(year) for year in re.findall(r"\b(\d\d)\d\d\.\d{5}\b", source)]
    return _BEFORE_2023 if years and min(years) < 2023 else _LATER


def _decoder(row: Mapping[str, Any]) -> Decoder | None:
    name, note = str(row.get("model", "")).removeprefix("attention of "), str(row.get("note", ""))
    sizes = re.search(r"h=(\d+), layers=(\d+)", note)
    known = {d.name: d for d in DECODERS} | {t.name: t.shape for t in TRANSFORMERS}
    found = known.get(name)
    if found is None and sizes:
        h, layers = map(int, sizes.groups())
        same = [t.shape for t in TRANSFORMERS if (t.hidden, t.layers) == (h, layers)]
        made = replace(TRANSFORMERS[1], name=name, layers=layers, hidden=h, heads=max(1, h // 128))
        found = same[0] if same else made.shape
    elif found is None and name == "gpt" and (said := re.search(r"(\d+(?:\.\d+)?)(b|t)\b", row["id"].lower())):
        size = float(said[1]) * {"b": 1e9, "t": 1e12}[said[2]]
        found = min((t.shape for t in TRANSFORMERS), key=lambda d: abs(math.log(d.parameters / size)))
    if found is not None and "with MTP" in f"{note} {row.get('source', '')}":
        return replace(found, extra_tokens=1)
    return found


def _machine(row: Mapping[str, Any]) -> Machine | None:
    words = str(row.get("hardware", "")).lower()
    name = next((machine for word, machine in _CHIPS if word in words), None)
    if name is None:
        return None
    node = get_machine(name).cluster.devices_per_node
    devices = row["devices"]
    return get_machine(name, devices if devices <= node else -(-devices // node) * node)


def _kernel(row: Mapping[str, Any]) -> DecoderPoint:
    parallel = row["parallel"]
    way = {"contiguous": "ring"}.get(parallel.get("placement", "zigzag"), parallel.get("placement", "zigzag"))
    return DecoderPoint(row["seq_length"], context=parallel.get("cp", 1), way=way, level=0)


_READ = {"tp": "tensor", "pp": "stages", "cp": "context", "ep": "expert", "etp": "expert_tensor", "chunks": "chunks"}
_READ |= {"zero": "level", "sp": "sequence_parallel", "async_tp": "tensor_overlap"}


def _planned(row: Mapping[str, Any], decoder: Decoder, machine: Machine, publisher: Publisher, where: str) -> Run:
    parallel, precision = dict(row.get("parallel") or {}), str(row.get("precision", "")).lower()
    given: dict[str, Any] = {"data": 1, **publisher.fields}
    fp8 = "fp8" in precision or "fp4" in precision  # products in four bits are not known here: as in eight
    given["numbers"] = "fp8" if fp8 and machine.fp8_flops_per_s else "bf16"
    if publisher.compiled:
        given["fused"] = fp8 or "compiled" in precision or bool(parallel.get("async_tp"))
        given["fused_loss"] = re.search(r"_20(1|2[0-4])", str(row.get("source", ""))) is None  # compiled since 2025
    given |= {name: parallel[key] for key, name in _READ.items() if key in parallel}
    assumed: list[str] = []
    if parallel.get("optimizer_parallel"):
        given["level"] = 1
    if "fsdp" in parallel:
        given |= {"level": 3, "data": parallel["fsdp"]}
        if int(given.get("stages", 1)) > 1:  # weights stay gathered through a step: their copies are divided alone
            given |= {"level": 1, "states": "mixed"}
    if "dp_pods" in parallel:
        given |= {"replicas": parallel["dp_pods"], "data": given["data"] * parallel["dp_pods"]}
    one = math.prod(int(given.get(name, 1)) for name in ("tensor", "stages", "context"))
    if "dp" in parallel and "fsdp" not in parallel:
        given["data"] = parallel["dp"]
    elif "fsdp" not in parallel and one > 1:
        given["data"] = max(1, row["devices"] // one)
    said = f"{precision} {row.get('note', '')}".lower()
    chosen = next((kind for word, kind in _SAID if word in said), "")
    usual = (publisher.recompute, "full") if publisher.recompute else _RECOMPUTE[given.get("flash", True)]
    seq, stages = row["seq_length"], int(given.get("stages", 1))
    if given.get("chunks", 1) > 1 and stages == 1:
        given["chunks"] = 1
    given |= {"schedule": parallel["schedule"]} if parallel.get("schedule") else {}
    if parallel.get("schedule", "interleaved" if given.get("chunks", 1) > 1 else "") == "interleaved":
        given |= {"schedule": "interleaved", "chunks": max(2, given.get("chunks", 1))}
    if given["data"] * one != row["devices"]:
        if one * given["data"] > 1:
            what = f"its degrees make {given['data'] * one} devices of {row['devices']}"
            return Run(row, decoder, machine, None, publisher.counts, why=what)
        return _searched(row, decoder, machine, publisher, given)
    batch = row.get("batch_sequences")
    if batch is None:
        batch = given["data"] * _OF_A_STAGE * stages
        assumed.append(f"batch {batch}")
    each = max(1, batch // given["data"])
    usually = 1 if stages > 1 or not publisher.compiled and each > 16 else each
    if publisher.of_stages and stages > 1:
        usually = max(1, each // (stages * given.get("chunks", 1)))
    rows = parallel.get("micro_batch") or usually
    if "micro_batch" not in parallel:
        assumed.append(f"micro-batches of {rows}" + ", as many as parts" * (publisher.of_stages and stages > 1))
    shape: dict[str, Any] = {"seq_length": seq, "micro_batch": rows, "micro_batches": max(1, each // rows), **given}
    try:
        points = [DecoderPoint(**shape, recompute=kind) for kind in ((chosen,) if chosen else usual)]
    except (ArgumentError, TypeError) as error:
        return Run(row, decoder, machine, None, publisher.counts, why=str(error))
    if fault := decoder_misfit(decoder, points[0], machine.cluster):
        return Run(row, decoder, machine, None, publisher.counts, why=fault)
    sizes = price(decoder, machine, Columns.of_points(points)).memory_bytes
    fitting = [p for p, size in zip(points, sizes, strict=True) if size <= machine.cluster.device.memory_bytes]
    point = fitting[0] if fitting else points[-1]
    if not chosen:
        assumed.append(f"recompute {point.recompute}")
    return Run(row, decoder, machine, point, publisher.counts, tuple(assumed))


_SAID = (("attention recomputed", "attention"), ("full recompute", "full"), ("layers recomputed", "full"))


def _searched(
    row: Mapping[str, Any], decoder: Decoder, machine: Machine, publisher: Publisher, given: dict[str, Any]
) -> Run:
    """A run without degrees: the fastest plan."""
    batch = row.get("batch_sequences") or row["devices"]
    fixed = {k: v for k, v in given.items() if k in ("numbers", "states", "one_copy", "fused", "flash", "overlap")}
    how: dict[str, Any] = {"seq_length": row["seq_length"], "levels": (1,), "chunks": (1, 2, 4), **fixed}
    try:
        best = search_plans(decoder, get_machine(machine, row["devices"]), batch, **how).winner
    except ArgumentError as error:
        return Run(row, decoder, machine, None, publisher.counts, why=f"no degrees are given, and {error}")
    return Run(
        row, decoder, machine, cast(DecoderPoint, best.point), publisher.counts, ("degrees: the fastest plan found",)
    )
