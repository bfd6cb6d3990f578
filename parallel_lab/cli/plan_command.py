"""`parallel-lab plan`: how to spend thousands of devices on a transformer, predicted; none of them is needed.

    parallel-lab plan --net gpt3_175b --devices 1024 --cluster dgx_a100 --batch 1536
    parallel-lab plan --net gpt --layers 96 --hidden 12288 --devices 4096 --cluster cluster.json
    parallel-lab plan --net gpt_22b --devices 8 --point t=8,b=4,m=1,recompute=attention,sequence=yes
    parallel-lab plan --net gpt3_175b --devices 1024 --html plan.html --json plan.json
    parallel-lab plan --net llama3_8b --seq-length 131072 --devices 64 --batch 64 --context 8,16 --ways zigzag,ulysses
    parallel-lab plan --net mixtral_8x7b --devices 64 --point d=16,p=4,e=8,m=16
    parallel-lab plan --model config.json --devices 64 --cluster dgx_h100
    parallel-lab plan --run llama3-405b-16k

Without --point: the outer search (`cost/planner/outer.py`). With it: one prediction, number by number with its formula.
With --run: a published run, predicted next to what was printed. Every prediction carries its error bar.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.checks import choice
from ..base.errors import ArgumentError
from ..base.files import check_writable, write_whole
from ..base.progress import shown
from ..base.units import time_text
from .options import option, subcommand, whole_number

if TYPE_CHECKING:
    from ..cost.planner import Decoder, DecoderPoint, Machine, PlanPoint, Transformer

_COUNT = whole_number(1)
_SIZES = {"layers": 24, "hidden": 2048, "heads": None, "seq_length": 2048, "vocab_size": 51200}
DEVICES = 1024  # where nobody says how many, and nodes are joined
_SWITCH = {"yes": True, "no": False}
_WORDS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "d": ("data", int, "a whole number"),
    "t": ("tensor", int, "a whole number"),
    "p": ("stages", int, "a whole number"),
    "b": ("micro_batch", int, "a whole number"),
    "m": ("micro_batches", int, "a whole number"),
    "v": ("chunks", int, "a whole number"),
    "zero": ("level", int, "a whole number"),
    "schedule": ("schedule", str, ""),
    "recompute": ("recompute", str, ""),
    "sequence": ("sequence_parallel", _SWITCH.__getitem__, "yes or no"),
    "overlap": ("overlap", _SWITCH.__getitem__, "yes or no"),
}
_OF_DECODERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    **{word: _WORDS[word] for word in ("d", "t", "p", "b", "m", "zero", "recompute", "sequence")},
    **{word: _WORDS[word] for word in ("v", "schedule", "overlap")},
    "c": ("context", int, "a whole number"),
    "e": ("expert", int, "a whole number"),
    "et": ("expert_tensor", int, "a whole number"),
    "u": ("exchange", int, "a whole number"),
    "way": ("way", str, ""),
    "groups": ("replicas", int, "a whole number"),
    **{name: (name, str, "") for name in ("numbers", "states", "offload")},
    "flash": ("flash", _SWITCH.__getitem__, "yes or no"),
}
_SEARCHED = ("context", "expert", "expert_tensor", "ways")  # of decoders only
_DEFAULTS = {"net": "gpt", "cluster": "dgx_a100", "precision": "mixed", "rows": 12}
_NOT_OF_RUNS = ("net", "model", *_SIZES, "devices", "cluster", "batch", "memory_gb", "precision", "point", "rows")
_TOKENS = 4096  # of a decoder's sequence, where nobody says
_PRINT = "-"  # where --json names no file
_NET = (
    "gpt, with sizes, or a known model: gpt3_175b, gpt_22b, ...; decoders: llama3_8b, mixtral_8x7b, ... (default gpt)"
)
_ONLY = "decoders:"
_HOW = "zigzag, ring, gathered, ulysses, hybrid"
_JSON = "also write all numbers to FILE; without FILE print one JSON object instead of lines"
_DEVICES = "how many, in whole nodes (default: 1024; of a cluster file and of a machine by itself all that it has)"
_POINT = "predict this one: d copies, t ranks of a layer, p stages, m micro-batches of b, v chunks, ...; decoders: "
_POINT += "c ranks of a sequence, u of them exchange heads, e ranks with different experts, et of one."


def _plan(args: argparse.Namespace) -> int:
    from ..cost.planner import Decoder, error_bar_text, predict_point, report_run, search_plans
    from .plan_page import point_page, run_page, search_page

    for file in (args.json, args.html):
        if file and file != _PRINT:
            check_writable(file)  # before the search
    if args.html and args.json and args.json != _PRINT and Path(args.html).resolve() == Path(args.json).resolve():
        args.parser.error(f"--html and --json: both would write {args.html}")
    if args.run_id is not None:
        given = [name for name in (*_NOT_OF_RUNS, *_SEARCHED) if getattr(args, name) is not None]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            args.parser.error(f"{names} and --run: a published run has its own")
        report = report_run(args.run_id)
        return _give(args, report.text(), report.to_dict(), lambda: run_page(report))
    for name, value in _DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    model, machine = _model(args), _machine(args)
    tokens = (args.seq_length or _TOKENS) if isinstance(model, Decoder) else None
    options = {name: getattr(args, name) for name in _SEARCHED if getattr(args, name) is not None}
    if options and tokens is None:
        args.parser.error(f"--{next(iter(options)).replace('_', '-')}: only of a decoder, such as llama3_8b")
    if args.point is not None:
        point = predict_point(model, _point(args.point, tokens), machine, precision=args.precision)
        bar = error_bar_text(machine.cluster.name)  # of all published runs: only now
        numbers = {**point.to_dict(), "error_bar": bar}
        return _give(args, f"{point.explain()}\n{bar}", numbers, lambda: point_page(point, bar))
    cap = None if args.memory_gb is None else args.memory_gb * 1e9
    batch = args.batch or machine.cluster.device_num
    how = {"precision": args.precision, **options}
    with shown("looking at plans") as progress:
        result = search_plans(model, machine, batch, seq_length=tokens, memory_bytes=cap, progress=progress, **how)
    best, bar = result.winner, error_bar_text(machine.cluster.name)
    fastest = f"The fastest takes {time_text(best.step_s)} a step, at {best.mfu:.1%} of the devices' peak"
    text = f"{fastest}: {best.point.in_words()}.\n{result.text(args.rows)}\n\n{result.winner.explain()}\n{bar}"
    return _give(args, text, {**result.to_dict(), "error_bar": bar}, lambda: search_page(result, bar))


def _give(args: argparse.Namespace, text: str, numbers: dict, made: Callable[[], str]) -> int:
    """Print, and write what was asked for.  made: the page"""
    data = json.dumps(numbers, indent=2)
    print(data if args.json == _PRINT else text)
    if args.json and args.json != _PRINT:
        write_whole(args.json, f"{data}\n")
    if args.html:
        write_whole(args.html, made())
    return 0


def _model(args: argparse.Namespace) -> Transformer | Decoder:
    from ..cost.planner import Decoder, Transformer, get_model, read_decoder

    if args.model is not None:
        if args.net != "gpt":
            args.parser.error(f"--net {args.net} and --model: one of them")
        return read_decoder(args.model)
    given = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
    if args.net != "gpt":
        model = get_model(args.net)
        if given and not (isinstance(model, Decoder) and list(given) == ["seq_length"]):
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            args.parser.error(f"{names}: only with --net gpt; {args.net} has its own")
        return model
    sizes = {**_SIZES, **given}
    if sizes["heads"] is None:  # heads of 128, as most models have
        sizes["heads"] = max(1, sizes["hidden"] // 128)
    return Transformer("gpt", **sizes)


def _machine(args: argparse.Namespace) -> Machine:
    from ..cost.planner import get_machine, read_machine

    is_file = args.cluster.endswith(".json") or os.path.isfile(args.cluster)
    machine = (read_machine if is_file else get_machine)(args.cluster, args.devices)
    if args.devices is None and not is_file and machine.cluster.node_link is not None:
        return get_machine(machine, DEVICES)
    return machine


def _point(text: str, tokens: int | None) -> PlanPoint | DecoderPoint:
    """tokens  of a decoder's sequence"""
    from ..cost.planner import DecoderPoint, PlanPoint

    words = _WORDS if tokens is None else _OF_DECODERS
    fields: dict[str, Any] = {}
    for part in text.split(","):
        word, _, value = part.strip().partition("=")
        name, read, allowed = words[choice(*words)("--point", "word", word)]
        try:
            fields[name] = read(value)
        except (ValueError, KeyError):
            raise ArgumentError(f"{word}={value}", where="--point", allowed=allowed.capitalize()) from None
    return PlanPoint(**fields) if tokens is None else DecoderPoint(tokens, **fields)


def _counts(text: str) -> list[int]:
    return [_COUNT(part) for part in text.split(",")]


def add_parser(subparsers: Any) -> None:
    """Add `plan` to the command's subcommands."""
    subcommand(
        subparsers,
        "plan",
        _plan,
        (
            option("--net", metavar="NAME", help=_NET),
            option(
                "--model", metavar="FILE", help="a model hub's config.json: LlamaForCausalLM, Qwen3MoeForCausalLM, ..."
            ),
            option(
                "--run",
                dest="run_id",
                metavar="ID",
                help="a published run, next to its prediction, such as llama3-405b-16k",
            ),
            option("--layers", type=_COUNT, help="of gpt (default 24)"),
            option("--hidden", type=_COUNT, help="of gpt (default 2048)"),
            option("--heads", type=_COUNT, help="of gpt (default: hidden / 128)"),
            option("--seq-length", type=_COUNT, help="of gpt (default 2048) or of a decoder (default 4096), in tokens"),
            option("--vocab-size", type=_COUNT, help="of gpt (default 51200)"),
            option("--devices", type=_COUNT, help=_DEVICES),
            option("--cluster", metavar="NAME|FILE", help="known, or JSON (default dgx_a100)"),
            option("--batch", type=_COUNT, help="sequences of a step (default: as many as devices)"),
            option("--memory-gb", type=_COUNT, help="of a rank, 1e9 bytes each (default: the device's)"),
            option("--precision", choices=("mixed", "float32"), help="mixed: 2 bytes a number"),
            option(
                "--context", type=_counts, metavar="N,N", help=f"{_ONLY} ranks that share a sequence, to choose from"
            ),
            option("--ways", type=lambda text: text.split(","), metavar="WAY,WAY", help=f"{_ONLY} how: {_HOW}"),
            option("--expert", type=_counts, metavar="N,N", help=f"{_ONLY} ranks that hold different experts"),
            option("--expert-tensor", type=_counts, metavar="N,N", help=f"{_ONLY} ranks that split one (default 1)"),
            option(
                "--point",
                metavar="d=8,t=8,...",
                help=f"{_POINT} Words: {', '.join(_WORDS)}; of decoders {', '.join(_OF_DECODERS)}",
            ),
            option("--rows", type=_COUNT, help="of the line of time against memory (default 12)"),
            option("--json", nargs="?", const=_PRINT, metavar="FILE", help=_JSON),
            option("--html", metavar="FILE", help="also write picture and tables to FILE, one self-contained page"),
        ),
        help="predict and choose how to train a transformer on thousands of devices",
        description="Predicts step time, utilization, memory per rank, traffic per link and the bubble of plans for a "
        "transformer on a cluster, and finds the fastest under the memory: copies, ranks of a layer, stages, "
        "micro-batches, ZeRO level, recompute; for decoders also ranks of a sequence and of experts. A block is "
        "compiled, or a decoder's formulas are evaluated, and the rest follows; no device is needed.",
        epilog="examples:\n  parallel-lab plan --net gpt3_175b --devices 1024 --batch 1536\n"
        "  parallel-lab plan --net gpt --layers 96 --hidden 12288 --devices 4096 --cluster cluster.json\n"
        "  parallel-lab plan --net gpt_22b --devices 8 --point t=8,b=4,m=1,recompute=attention,sequence=yes\n"
        "  parallel-lab plan --net llama3_8b --seq-length 131072 --devices 64 --context 8,16 --ways zigzag,ulysses\n"
        "  parallel-lab plan --net mixtral_8x7b --devices 64 --point d=16,p=4,e=8,m=16\n"
        "  parallel-lab plan --model config.json --devices 64 --cluster dgx_h100\n"
        "  parallel-lab plan --run llama3-405b-16k\n"
        "  parallel-lab plan --net gpt3_175b --devices 1024 --batch 1536 --html plan.html --json plan.json\n\n"
        "a cluster file is a known cluster with changes, or all of it:\n"
        '  {"preset": "dgx_a100", "node_link": {"alpha_s": 1e-5, "beta_s_per_byte": 4e-11}}\n',
    )
