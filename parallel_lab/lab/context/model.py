"""The Context Lab: attention over a sequence that lies on several ranks. Who computes which pair, and what travels?

    lab = ContextLab("contiguous", ranks=4)
    print(lab.to_text())            # rank 3 works 228 of 528 pairs: 57.9 % of the time is useful
    lab.set_way("zigzag")           # 100 %
    lab.set_step(2)                 # the pairs of the ring's third step are bright
    lab.run_measured(); lab.wait()  # a small GPT trains so, on a worker process for each rank, and on one device

A square of 32 x 32 pairs, a row for each query, a column for each key; a pair has the colour and the number of the rank
that computes it. Pairs are counted (`layout/placements.py`), bytes and seconds predicted by formula
(`cost/planner/sequence_messages.py`), until they are run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...base.units import bytes_text
from ...cost.planner.sequence_messages import least_hidden_tokens
from ..shared.lab import offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import RunsOnRanks
from ..shared.sections import Section, code, table
from .run import Key, Ran, run_on_ranks
from .ways import HEADS, MASKS, TOKENS, WAYS, Way, visible_of, way_of

RANKS = (2, 4, 8)
KV_HEADS = {8: "8 of 8", 4: "4 of 8", 2: "2 of 8", 1: "1 of 8"}
PEAK = 312e12  # operations per second: an A100 in half precision, data sheet
LINKS = {300: "300 GB/s", 25: "25 GB/s", 12: "12.5 GB/s"}  # in a node; between nodes, one port each and half of one
BYTES_PER_S = {300: 300e9, 25: 25e9, 12: 12.5e9}
LENGTHS = (8192, 32768, 131072)
REAL_HEADS, REAL_HEAD_SIZE = 64, 128  # as Llama 3 70B has them, bfloat16

PARTS = ("square", "work", "ways", "more")  # of the view
CODES = {  # how the systems spell it, where they have it
    "contiguous": ["MindSpore: flash.add_prim_attr('enable_ring_attention', True), all blocks are computed"],
    "zigzag": [
        "PyTorch: context_parallel(mesh, buffers=..., buffer_seq_dims=...), set_rotate_method('alltoall')",
        "Megatron-LM: --cp-comm-type p2p",
    ],
    "striped": ["none of MindSpore, PyTorch and Megatron-LM has it; zhuzilin/ring-flash-attention does"],
    "gathered": [
        "MindFormers: context_parallel_algo: colossalai_cp",
        "PyTorch: set_rotate_method('allgather')",
        "Megatron-LM: --cp-comm-type allgather",
    ],
    "ulysses": ["MindFormers: context_parallel_algo: ulysses_cp", "Megatron-LM: --cp-comm-type a2a"],
    "hybrid": [
        "MindFormers: context_parallel_algo: hybrid_cp, ulysses_degree_in_cp: 2",
        "Megatron-LM: --cp-comm-type a2a+p2p",
    ],
}


class ContextLab(RunsOnRanks):
    """One attention over 32 tokens, 8 heads of 4 float32 numbers, on 2, 4 or 8 ranks.

    way       one of WAYS: "contiguous", "zigzag", "striped", "gathered", "ulysses", "hybrid"
    ranks     that share the sequence
    mask      one of MASKS: "causal", "full", "window", "documents"
    kv_heads  8, 4, 2 or 1 heads of keys and values for the 8 of queries
    link      what a rank sends at most, in 10^9 bytes per second: 300, 25, or 12 for 12.5

    Raises ArgumentError for values that are not offered.
    """

    title = "Context Lab"
    scripts, styles = ("context/story.js", "context/context_lab.js"), ("context/context_lab.css",)
    commands = ("run_simulated", "run_measured", "stop", *COMMANDS)
    free: ClassVar[tuple[str, ...]] = ("way", "ranks", "mask", "kv_heads", "link")
    frame_height_px = 800
    train = staticmethod(run_on_ranks)

    def __init__(
        self,
        way: str = "contiguous",
        ranks: int = 4,
        mask: str = "causal",
        kv_heads: int = 4,
        link: int = 300,
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._step = 0
        self._begin(way=way, ranks=ranks, mask=mask, kv_heads=kv_heads, link=link)

    set_way = offered("way", WAYS, "Another way to compute the same attention.", way=str)
    set_ranks = offered("ranks", RANKS, "Another number of ranks.", ranks=int)
    set_mask = offered("mask", MASKS, "Which keys a query sees.", mask=str)
    set_kv_heads = offered("kv heads", KV_HEADS, "Heads of keys and values.", heads=int)
    set_link = offered("link", LINKS, "What a rank sends at most.", link=int)

    @setting(
        "step", lambda lab: _numbered(lab.now.steps), value=lambda lab: min(lab._step, lab.now.steps - 1), look=True
    )
    def set_step(self, step: int) -> None:
        """The step of the ring, from 0, whose pairs are bright; the last one where a way has fewer."""

    def _in_words(self) -> str:
        return f"{WAYS[self._way]}, {self._ranks} ranks"

    def _done_of(self, ran: Ran) -> str:
        return f"{len(ran.losses)} steps on {self._ranks} ranks and on one device"

    # ---- what there is ----

    @property
    def key(self) -> Key:
        """What a run is about: way, ranks, mask, heads of keys."""
        return self._way, self._ranks, self._mask, self._kv_heads

    @property
    def now(self) -> Way:
        """The chosen way."""
        return self.way(self._way)

    def way(self, name: str, tokens: int = TOKENS) -> Way:
        """Another one with the same settings; `tokens` other than 32: with the heads and numbers of a real model."""
        if tokens == TOKENS:
            return way_of(name, self._ranks, tokens, self._mask, self._kv_heads)
        real = {"heads": REAL_HEADS, "head_size": REAL_HEAD_SIZE, "size": 2}
        return way_of(name, self._ranks, tokens, self._mask, self._kv_heads * REAL_HEADS // HEADS, **real)

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        way = self.now
        return {
            "status": self._status(way),
            "sections": {
                "square": self._square(way),
                "work": _work(way),
                "ways": self._ways(way),
                "hides": self._hides(way),
                "steps": _steps(way),
                "holds": self._holds(way),
                **({"ran": _on_ranks(way, self.ran)} if self.ran else {}),
                "python": code("Code", self._code(), tab=True),
            },
        }

    def questions(self) -> list[Question]:
        """The useful share; which rank waits most; whether a ring or Ulysses sends less."""
        way, ring, ulysses = self.now, self.way("zigzag"), self.way("ulysses")
        about, hides = f"{self._ranks} ranks, {self._mask}, {self._kv_heads} kv heads", PARTS
        share = way.work.useful_share
        text = f"{WAYS[self._way]}: what percentage of the ranks' time is useful?"
        why = f"{way.work.useful} visible pairs, {way.groups} times {way.work.time} in which all could compute"
        asks = [Question(f"{about}, {self._way}", text, (float(100 * share),), why, unit="%", within=0.02, hides=hides)]
        least = [n for n, pairs in zip(way.names, way.work.per_rank, strict=True) if pairs == min(way.work.per_rank)]
        if len(least) == 1:
            why = f"it computes {min(way.work.per_rank)} of {way.work.useful} pairs"
            names = tuple(f"rank {name}" for name in way.names)
            text = f"{WAYS[self._way]}: which rank waits longest?"
            right = (f"rank {least[0]}",)
            asks.append(Question(f"{about}, {self._way}, waits", text, right, why, hides=hides, choices=names))
        sent = {"a ring": ring.forward_bytes, "Ulysses": ulysses.forward_bytes}
        right = tuple(name for name in sent if sent[name] == min(sent.values()))
        why = f"{sent['a ring']:,} B against {sent['Ulysses']:,} B: Ulysses sends less from P = 1 + h_q / h_kv on, if "
        why += "there is a head of keys for each rank"
        text = f"What sends less, forward, on {self._ranks} ranks with {self._kv_heads} of 8 heads of keys?"
        return [*asks, Question(f"{about}, bytes", text, right, why, hides=hides, choices=tuple(sent))]

    def _status(self, way: Way) -> str:
        work = way.work
        most, pairs = max(work.per_rank), work.per_rank
        at = way.names[pairs.index(most)]
        who = f"Rank {at} works" if len(set(pairs)) > 1 else "Each rank works"
        of_heads = f" for {HEADS // way.together} of {HEADS} heads" if way.together > 1 else ""
        waits = "; the others wait" if work.useful_share < 1 else ""
        zigzag = "" if self._way == "zigzag" else f" Zigzag: {_percent(self.way('zigzag').work.useful_share)}."
        ring, ulysses = self.way("zigzag").forward_bytes, self.way("ulysses").forward_bytes
        sends = f"A ring sends {ring:,} B per rank forward, Ulysses {ulysses:,} B (predicted)."
        text = f"{who} {most:,} of {work.useful:,} pairs{of_heads}{waits}: {_percent(work.useful_share)} useful."
        return f"{text}{zigzag} {sends}"

    def _square(self, way: Way) -> Section:
        """As characters, and for the picture: the group that holds each position, and what each query sees."""
        first, stop = (bound.tolist() for bound in visible_of(self._mask, TOKENS).bounds(TOKENS))
        owners = way.placement.owners().tolist()
        of = {}
        for step in range(way.steps):
            rows = ["".join(_sign(way, owners, q, k, first, stop, step) for k in range(TOKENS)) for q in range(TOKENS)]
            text = "\n".join(f"{q:2} {row.rstrip()}" for q, row in enumerate(rows))
            small = f"step {step + 1} of {way.steps}; + was computed before, - comes later" if way.steps > 1 else ""
            of[str(step)] = {"text": text, "small": small, "at": step}
        picture = {"owners": owners, "names": way.names, "first": first, "stop": stop, "steps": way.steps}
        return {**code("Rank of each pair", "", by=["step"], of=of), **picture, "ranks": way.ranks}

    def _ways(self, way: Way) -> Section:
        columns = {"": "name", "forward": "bytes", "backward": "bytes", "holds": "bytes", "useful": "number"}
        rows = []
        for name, label in WAYS.items():
            w = self.way(name)
            share = _percent(w.work.useful_share)
            rows.append([label, w.forward_bytes, w.backward_bytes, w.held_bytes, share])
        return table("Every way", columns, rows, on=WAYS[way.name], small="bytes of a rank, predicted")

    def _hides(self, way: Way) -> Section:
        """At real lengths: whether a message hides behind the pairs of its step."""
        columns = {"tokens": "name", "of a rank": "number", "computes": "time", "sends": "time", "exposed": "late bar"}
        rows = []
        for tokens in LENGTHS:
            computes, sends, exposed = self.way(way.name, tokens).seconds(PEAK, BYTES_PER_S[self._link])
            rows.append([f"{tokens:,}", f"{tokens // self._ranks:,}", computes, sends, exposed])
        kv = self._kv_heads * REAL_HEADS // HEADS
        least = {
            name: least_hidden_tokens(PEAK, BYTES_PER_S[self._link], REAL_HEADS, kv, direction=name)
            for name in ("forward", "forward_zigzag", "backward")
        }
        note = f"A step of a ring hides its message from {least['forward']:,.0f} tokens of a rank on, zigzag, with "
        note += f"half the pairs, from {least['forward_zigzag']:,.0f}; backward, with gradients in float32, from "
        note += f"{least['backward']:,.0f}. Gathers and exchanges hide behind nothing of attention."
        small = f"{REAL_HEADS} heads of {REAL_HEAD_SIZE}, bfloat16, 312 TFLOP/s, {LINKS[self._link]}; predicted"
        return table("Hidden or exposed", columns, rows, small=small, notes=[note], tab=True)

    def _holds(self, way: Way) -> Section:
        shape = way.shape
        own = shape.rank_tokens * shape.heads * shape.head_size * shape.number_bytes
        rows = [("queries", own), ("result", own), ("log-sum-exp of each row", shape.rank_tokens * shape.heads * 4)]
        rows.append(("keys and values at once", way.held_bytes))
        total = sum(size for _, size in rows)
        small = f"of one attention, forward, in {way.passes}: {bytes_text(total)}, predicted"
        return table("A rank holds", {"": "name", "size": "bytes bar"}, rows, small=small, tab=True)

    def _code(self) -> str:
        head = "from parallel_lab.layout.placements import Placement, attention_work"
        return "\n".join(
            [head, "", f"attention_work({self._placed()})", "", *(f"# {line}" for line in CODES[self._way])]
        )

    def _placed(self) -> str:
        placement = self.now.placement
        return f'Placement("{placement.kind}", {placement.tokens}, {placement.ranks})'


def _on_ranks(way: Way, ran: Ran) -> Section:
    """What a run has found: losses next to those of one device, bytes next to the formula's."""
    rows = ran.rows(*range(1, len(ran.losses) + 1))
    for name, counted, formula in (
        ("sent forward", ran.forward_bytes, way.forward_bytes),
        ("sent backward", ran.backward_bytes, way.backward_bytes),
    ):
        rows.append([name, f"{counted:,} B", f"{formula:,} B by formula", _compared(counted, formula)])
    columns = {"": "name", ran.source: "number", "compared with": "text", " ": "verdict"}
    small = f"a GPT of one layer, {ran.source}; bytes are counted in its plan"
    return table("On ranks", columns, rows, small=small, tab=True)


def _compared(counted: int, formula: int) -> list[Any]:
    """How bytes counted in a plan compare with the formula, and whether they are at most as many."""
    if counted == formula:
        return ["as predicted", True]
    return ["DIFFERENT", False] if counted > formula else ["less: no key is in reach", True]


def _numbered(steps: int) -> dict[int, str]:
    """Steps from 0, as people count them."""
    return {step: str(step + 1) for step in range(steps)}


def _work(way: Way) -> Section:
    """Pairs of each rank in a step, and in all."""
    work, of = way.work, {}
    for step, pairs in enumerate(work.per_step):
        longest = max(pairs)
        rows = [
            [f"rank {name}", here, whole] for name, here, whole in zip(way.names, pairs, work.per_rank, strict=True)
        ]
        small = f"step {step + 1} of {way.steps} lasts {longest:,} pairs; all steps {work.time:,}"
        of[str(step)] = {"rows": rows, "small": small, "on": f"rank {way.names[pairs.index(longest)]}"}
    columns = {"": "name", "in this step": "count bar", "in all": "count"}
    return table("Pairs of each rank", columns, by=["step"], of=of)


def _steps(way: Way) -> Section:
    """A row for each step: the longest rank, and the share of it that the others use."""
    columns = {"step": "name", "longest rank": "text", "its pairs": "count bar", "useful": "number"}
    rows = []
    for step, pairs in enumerate(way.work.per_step):
        longest = max(pairs)
        share = f"{sum(pairs) / (longest * len(pairs)):.1%}" if longest else "nothing to do"
        rows.append([str(step + 1), way.names[pairs.index(longest)] if longest else "-", longest, share])
    return table("Steps", columns, rows, small="pairs, predicted", tab=True)


def _sign(way: Way, owners: list[int], q: int, k: int, first: list[int], stop: list[int], step: int) -> str:
    """The group that computes a pair in this step; + if that was before, - if it comes later, a blank if hidden."""
    if not first[q] <= k < stop[q]:
        return " "
    at = 0 if way.steps == 1 else (owners[q] - owners[k]) % way.groups
    return str(owners[q]) if at == step else "+" if at < step else "-"


def _percent(share: Any) -> str:
    return f"{float(share):.1%}".replace(".0%", "%").replace("%", " %")
