"""The Expert Lab: tokens go from their ranks to the experts that a router chooses, and back. Who gets how many?

    lab = ExpertLab(experts=8, k=2)
    print(lab.to_text())            # rank 3 gets 29 rows, mean 16: the layer takes 1.81 x as long as balanced
    lab.set_balance_factor("1")     # with a loss for it: 17 rows, 1.06 x
    lab.set_factor("1.25")          # slots: what finds none is dropped, and empty ones travel, too
    lab.run_measured(); lab.wait()  # the same training on four worker processes, and on one device

A small net trains on 32 tokens, 8 on each of 4 ranks (`net.py`); its router is looked at before and after every step.
Rows are counted from what it chooses; bytes are predicted from them by formula, until they are run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...base.settings.current import default_settings
from ...base.units import plural
from ...ops.expert_balance import bias_change, load_of
from ...ops.expert_capacity import CONVENTIONS
from ...ops.expert_rows import busiest_over_mean, bytes_leaving
from ..shared.lab import offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import RunsOnRanks
from ..shared.sections import Section, code, table
from .net import HIDDEN, RANKS, ROW_BYTES, STEPS, TOKENS, Order, Routing, Shape, trained
from .run import Key, Ran, run_on_ranks

EXPERTS, KS, EPS = (4, 6, 8, 16), (1, 2, 4, 8), (1, 2, 4)
ROUTER_NAMES = {
    "softmax_topk": "softmax, top-k",
    "softmax_topk_norm": "softmax, normed",
    "topk_softmax": "top-k, softmax",
    "sigmoid": "sigmoid",
    "sigmoid_norm": "sigmoid, normed",
}
FACTORS = {"dropless": "dropless", "0": "0", "0.5": "0.5", "1": "1", "1.25": "1.25", "2": "2"}
SKEWS = {0: "even", 1: "1", 2: "2"}
BIAS_RATES, BALANCE_FACTORS = ("0", "0.01", "0.05"), ("0", "0.1", "1")
PLACEMENTS = {"order": "in order", "eplb": "EPLB", "hand": "by hand"}
DROPPED = {
    "choice_major": "after all first choices, then second ones, have asked for a slot",
    "weight": "the smallest weights first",
    "mindspore_v1": "and tried once more: the next choice is the best expert that has not kept the token",
}
LOOKED_AT = {0: "0", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16", STEPS: str(STEPS)}
WAYS = {"there": "dispatch", "back": "combine"}

PARTS = ("flow", "exchange", "over", "more")  # of the view


class ExpertLab(RunsOnRanks):
    """One layer of experts over 32 tokens of 16 float32 numbers, 8 on each of 4 ranks.

    experts, k, router   4, 6, 8 or 16; of each token 1, 2, 4 or 8; one of `ops.routing.ROUTERS`
    factor, convention   "dropless", or slots by a capacity factor, "0" to "2"; one of `ops.expert_capacity.CONVENTIONS`
    ep                   ranks next to each other that share the experts out: 1, 2 or 4
    skew                 of the kinds of tokens: 0 is even
    bias_rate, balance_factor   what a step adds to the selection bias; the factor of the balance loss
    placement            of the experts on the ranks: "order", "eplb" or "hand"

    Raises ArgumentError for values that are not offered, and for those that do not fit.
    """

    title = "Expert Lab"
    scripts, styles = ("experts/story.js", "experts/expert_lab.js"), ("experts/expert_lab.css",)
    commands = ("pick", "run_simulated", "run_measured", "stop", *COMMANDS)
    replayed: ClassVar[tuple[str, ...]] = ("ep", "placement", "balance_factor", "factor", "bias_rate", "skew")
    frame_height_px = 800
    train = staticmethod(run_on_ranks)

    def __init__(
        self,
        experts: int = 8,
        k: int = 2,
        router: str = "softmax_topk_norm",
        factor: str = "dropless",
        convention: str = "megatron",
        ep: int = 4,
        skew: int = 1,
        bias_rate: str = "0",
        balance_factor: str = "0",
        placement: str = "order",
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._step, self._token, self._way = STEPS, 5, "there"
        self._hand: Order = tuple(range(EXPERTS[0]))
        self._held: int | None = None  # the expert that was picked first
        self._begin(
            experts=experts, k=k, router=router, factor=factor, convention=convention, ep=ep, skew=skew,
            bias_rate=bias_rate, balance_factor=balance_factor, placement=placement,
        )  # fmt: skip
        self._update()

    set_experts = offered("experts", EXPERTS, "Another number of experts.", experts=int)
    set_k = offered("top k", KS, "Experts of each token.", k=int)
    set_router = offered("router", ROUTER_NAMES, "How scores become choices and weights.", router=str)

    @setting("capacity", FACTORS)
    def set_factor(self, factor: str) -> None:
        """Slots of an expert, as a multiple of what alike experts need; "dropless": as many rows as come."""

    set_convention = offered("rule", list(CONVENTIONS), "Whose capacity factor it is.", convention=str)
    set_ep = offered("EP", EPS, "How many ranks share the experts out.", ep=int)
    set_skew = offered("skew", SKEWS, "How unequally frequent the kinds of tokens are.", skew=int)

    @setting("bias rate", BIAS_RATES)
    def set_bias_rate(self, bias_rate: str) -> None:
        """What a step adds to the selection bias of an expert with too little to do."""

    set_balance_factor = offered("loss factor", BALANCE_FACTORS, "The factor of the balance loss.", balance_factor=str)

    @setting("placement", PLACEMENTS)
    def set_placement(self, placement: str) -> dict[str, Any]:
        """Which experts lie on which rank: in order, packed by EPLB, or as `pick` has placed them."""
        return {"hand": self.order(self._step), "held": None} if placement == "hand" else {"held": None}

    @setting(value=lambda lab: " ".join(map(str, lab._hand)) if lab._placement == "hand" else None, typed=True)
    def set_hand(self, hand: str) -> dict[str, Any]:
        """Experts in the order of their places, such as "3 1 2 0". Raises ArgumentError unless each is there once."""
        numbers = hand.split() if isinstance(hand, str) else []
        if sorted(numbers) != sorted(map(str, range(self._experts))):
            allowed = f"Each number from 0 to {self._experts - 1} once, blanks between"
            raise ArgumentError(f"hand={shorten(hand)}", where=type(self).__name__, allowed=allowed)
        return {"hand": tuple(map(int, numbers)), "placement": "hand", "held": None}

    set_step = offered("step", LOOKED_AT, "The training step after which the router is looked at.", look=True, step=int)
    set_token = offered("token", range(RANKS * TOKENS), "The token whose way is drawn dark.", look=True, token=int)
    set_way = offered("way", WAYS, "Which of the two messages is shown: to the experts, or back.", look=True, way=str)

    def pick(self, expert: int) -> None:
        """Take an expert; a second one changes places with it, the same one is put back."""
        self.one_of(expert, range(self._experts), "expert")
        if self._ep == 1:
            allowed = "EP 2 or 4: with EP 1 every rank has all experts"
            raise ArgumentError(f"expert {expert} with EP 1", where="ExpertLab.pick", allowed=allowed)
        held, order = self._held, list(self.order(self._step))
        if held is None or held == expert:
            self._change(held=expert if held is None else None)
            return
        here, there = order.index(expert), order.index(held)
        order[here], order[there] = held, expert
        self._change(hand=tuple(order), placement="hand", held=None)

    def _in_words(self) -> str:
        return f"{STEPS} steps on {RANKS} ranks, EP {self._ep}"

    def _done_of(self, ran: Ran) -> str:
        text = f"{STEPS} steps on {RANKS} ranks and on one device: losses {ran.verdict[0]}"
        return f"{text}, {ran.same} of {ran.experts.size} choices the same"

    def _update(self) -> None:
        if len(self._hand) != self._experts:
            self._hand, self._held = tuple(range(self._experts)), None
        with default_settings():
            self.shape.layer(self._ep)  # says what does not fit

    # ---- what there is ----

    @property
    def shape(self) -> Shape:
        """What the training depends on."""
        factor = None if self._factor == "dropless" else float(self._factor)
        rates = float(self._bias_rate), float(self._balance_factor)
        return Shape(self._experts, self._k, self._router, factor, self._convention, self._skew, *rates)

    @property
    def key(self) -> Key:
        """What a run is about: the training, EP, and where the experts lie."""
        return self.shape, self._ep, self.order(self._step)

    def routing(self, step: int) -> Routing:
        """What the router says after so many steps."""
        return trained(self.shape)[1][step]

    def order(self, step: int) -> Order:
        """The experts in the order of their places: the first E / EP lie on the first rank of each group."""
        if self._placement == "eplb":
            return tuple(expert for rank in self.routing(step).placed(self._ep).devices for expert in rank)
        return self._hand if self._placement == "hand" else tuple(range(self._experts))

    def sent(self, step: int, order: Order | None = None) -> np.ndarray:
        """Rows that each rank gives each on the way to the experts, (4, 4).  order: of the experts"""
        return self.routing(step).sent(self._ep, order or self.order(step))

    def travelling(self, step: int, order: Order | None = None) -> np.ndarray:
        """The same with what the message really carries: where there are slots, empty ones, too."""
        room = self.shape.room
        return self.sent(step, order) if room is None else self._even(self._experts // self._ep * room)

    def _even(self, rows: int) -> np.ndarray:
        """(4, 4): so many rows from each rank to each of its group."""
        return np.kron(np.eye(RANKS // self._ep, dtype=int), np.full((self._ep, self._ep), rows))

    @property
    def balanced(self) -> np.ndarray:
        """The same if every expert were chosen as often, and nothing was dropped or empty."""
        return self._even(TOKENS * self._k // self._ep)

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        leads = {str(step): self._lead(step) for step in LOOKED_AT}
        return {
            "status": leads[str(self._step)],
            "leads": leads,
            "held": self._held,
            "sections": {
                "flow": self._flow(),
                "exchange": self._exchange(),
                "over": self._over(),
                "router": self._scores(),
                "messages": self._messages(),
                "places": self._places(),
                **({"ran": self._on_ranks(self.ran)} if self.ran else {}),
                "python": code("Code", self._code(), tab=True),
            },
        }

    def questions(self) -> list[Question]:
        """Rows of the busiest rank; bytes that leave a rank if balanced; slots of an expert."""
        about, rows = f"{self.shape}, EP {self._ep}, {self._placement}", self.sent(self._step).sum(axis=0)

        def asked(key: str, text: str, right: int, why: str, unit: str, within: float = 0.0) -> Question:
            return Question(f"{about}, {key}", text, (right,), why, unit=unit, within=within, hides=PARTS)

        text = f"How many rows does the busiest of the 4 ranks get after {plural(self._step, 'step')}? "
        text, why = f"{text}The mean is {rows.mean():g}.", f"the ranks get {', '.join(map(str, rows))}"
        asks = [asked(f"rows {self._step}", text, int(rows.max()), why, "rows", 0.25)]
        text = "If all experts were chosen alike: how many bytes leave a rank forward, dispatch and combine, dropless?"
        why = f"2 x {TOKENS * self._k} rows of {ROW_BYTES} B; a share of 1 / {self._ep} stays on the rank"
        asks.append(asked("bytes", text, 2 * bytes_leaving(self.balanced, ROW_BYTES)[0], why, "B"))
        if (room := self.shape.room) is not None:
            text = f"How many slots has an expert for the {TOKENS} tokens of a rank, by {self._convention}?"
            why = f"{TOKENS * self._k} choices, {self._experts} experts, factor {self._factor}, as it counts and rounds"
            asks.append(asked("slots", text, room, why, "slots"))
        return asks

    def _lead(self, step: int) -> str:
        rows, routing = self.sent(step).sum(axis=0), self.routing(step)
        most, mean, count = int(rows.max()), rows.mean(), routing.kept.size
        who = f"Rank {int(rows.argmax())} gets" if (rows == most).sum() == 1 else "Ranks get up to"
        rows_of = f"{who} {most} rows, mean {mean:.3g}" if most > mean else f"Every rank gets {most} rows"
        if (room := self.shape.room) is None:
            return f"{rows_of}: the layer takes {_times(most / mean)}; no choice is dropped."
        drops = f"{int((~routing.kept).sum()) or 'none'} of {count} choices dropped"
        slots = self._experts * room
        return f"{rows_of}; {drops}; all compute {slots} slots, {_times(slots / (TOKENS * self._k))}."

    def _by_step(self, title: str, columns: str, rows: Callable[[int], list[list[Any]]], **more: Any) -> Section:
        """A table of rows for each step that can be looked at.  columns: "rows: count bar, dropped: count" """
        heads = dict(column.split(": ") for column in columns.split(", "))
        of = {str(step): {"rows": rows(step)} for step in LOOKED_AT}
        return table(title, {"": "name", **heads}, by=["step"], of=of, **more)

    def _boxes(self, step: int) -> list[tuple[int, int, list[int], list[int]]]:
        """Each expert on each rank that has it: rank, expert, the tokens that it keeps, and those that it drops."""
        routing, order, each, boxes = self.routing(step), self.order(step), self._experts // self._ep, []
        for rank in range(RANKS):
            first, place = rank // self._ep * self._ep, rank % self._ep
            group = slice(first, first + self._ep)
            for expert in order[place * each : (place + 1) * each]:
                mine, kept = routing.experts[group] == expert, routing.kept[group]
                lists = (np.flatnonzero((mine & of).any(axis=-1)) + first * TOKENS for of in (kept, ~kept))
                boxes.append((rank, expert, *(numbers.tolist() for numbers in lists)))
        return boxes

    def _flow(self) -> Section:
        """A row for each expert on each rank, and what the picture is drawn from."""
        biased, own, room = float(self._bias_rate) > 0, self._experts // self._ep, self.shape.room

        def rows(step: int) -> list[list[Any]]:
            bias = [f"{each:+.2f}" if biased else "" for each in self.routing(step).bias]
            boxes = self._boxes(step)
            return [[f"expert {e} on rank {r}", len(kept), len(out) or "", bias[e]] for r, e, kept, out in boxes]

        note = "Line: " + plural(room or 0, "slot")
        note += f" of an expert for the tokens of each rank; hatched: dropped, {DROPPED[self.shape.drop_order]}."
        note += f" To each rank {own} x {room} rows travel, empty ones too." if self._ep > 1 else ""
        heads, notes = "rows: count bar, dropped: count, bias: text", [] if room is None else [note]
        made = self._by_step("Rows of each expert", heads, rows, notes=notes)
        for step in LOOKED_AT:
            now = self.routing(step)
            change = bias_change(load_of(now.experts, self._experts), 1.0).astype(int)
            made["of"][str(step)] |= {
                "columns_of": self._boxes(step),
                "weights": [[float(f"{w:.3g}") for w in weights] for weights in now.weights.reshape(-1, self._k)],
                "chosen": now.experts.reshape(-1, self._k).tolist(),
                "kept": now.kept.reshape(-1, self._k).astype(int).tolist(),
                "bias": [[round(float(b), 3), int(c)] for b, c in zip(now.bias, change, strict=True)] if biased else [],
                "small": f"after {plural(step, 'step')}" if step else "untrained",
            }
        return {**made, "room": room, "ep": self._ep, "tokens": TOKENS, "ranks": RANKS}

    def _exchange(self) -> Section:
        """Rows of the two messages: a row sends, a column receives."""
        of = {}
        for step, way in product(LOOKED_AT, WAYS):
            sent = self.sent(step) if way == "there" else self.sent(step).T
            rows = [[f"rank {rank}", *row, sum(row)] for rank, row in enumerate(sent.tolist())]
            of[f"{step}|{way}"] = {"rows": [*rows, ["receives", *sent.sum(axis=0).tolist(), ""]]}
        columns = {"": "name", **{f"to {r}": "number" for r in range(RANKS)}, "sends": "number"}
        return table("Rows that travel", columns, by=["step", "way"], of=of, small="from a row to a column")

    def _over(self) -> Section:
        """The balance at every step, of ranks and of experts."""
        losses, steps = trained(self.shape)
        ranks = [round(busiest_over_mean(self.sent(step).sum(axis=0)), 3) for step in range(STEPS + 1)]
        experts = [round(busiest_over_mean(load_of(routing.experts, self._experts)), 3) for routing in steps]
        lost = [int((~routing.kept).sum()) for routing in steps]
        said = [*(f"{loss:.3g}" for loss in losses), "-"]
        columns = {"step": "name", "busiest rank": "number", "busiest expert": "number", "dropped": "count"}
        rows = [[str(s), f"{ranks[s]:.3g}", f"{experts[s]:.3g}", lost[s], said[s]] for s in LOOKED_AT]
        made = table("Busiest over mean, step by step", {**columns, "loss": "text"}, rows)
        return {**made, "lines": {"ranks": ranks, "chosen": experts}}

    def _scores(self) -> Section:
        """What the router says of one token: logits z, scores p, the chosen and their weights."""
        home, t = divmod(self._token, TOKENS)

        def rows(step: int) -> list[list[Any]]:
            now = self.routing(step)
            numbers = zip(now.logits[home, t], now.scores[home, t], now.bias, strict=True)
            made = [[f"expert {e}", f"{z:.3f}", f"{p:.3f}", f"{b:+.3f}", "", ""] for e, (z, p, b) in enumerate(numbers)]
            for at, expert in enumerate(now.experts[home, t]):
                said = f"choice {at + 1}" if now.kept[home, t, at] else f"choice {at + 1}, dropped"
                made[expert][4:] = [said, f"{now.weights[home, t, at]:.3f}"]
            return made

        small = f"of rank {home}; {ROUTER_NAMES[self._router]}; the bias counts for the choice alone"
        heads = "z: number, p: number, bias: number, chosen: text, weight: number"
        made = self._by_step(f"Router of token {self._token}", heads, rows, small=small, tab=True)
        for step in LOOKED_AT:  # of all tokens, for a page without a kernel
            now = self.routing(step)
            z, p, bias = (each.astype(float).round(3) for each in (now.logits, now.scores, now.bias))
            flat = {"z": z.reshape(-1, self._experts).tolist(), "p": p.reshape(-1, self._experts).tolist()}
            made["of"][str(step)] |= {**flat, "bias": bias.tolist()}
        return made

    def _leaving(self, step: int, order: Order | None = None) -> tuple[list[int], list[int]]:
        """Bytes that leave each rank for others: dispatch and combine."""
        rows = self.travelling(step, order)
        return bytes_leaving(rows, ROW_BYTES), bytes_leaving(rows.T, ROW_BYTES)

    def _messages(self) -> Section:
        """Bytes that leave each rank in the four messages of a step."""
        balanced, slots = bytes_leaving(self.balanced, ROW_BYTES)[0], self.shape.room is not None
        names = f"dispatch, all_to_all{'' if slots else '_v'}", "combine", "gradient of combine", "gradient of dispatch"

        def rows(step: int) -> list[list[Any]]:
            there, back = self._leaving(step)
            return [[name, *sizes, balanced] for name, sizes in zip(names, (there, back) * 2, strict=True)]

        note = "Slots travel, empty ones too." if slots else "Counts of all ranks travel first: 4 B for each expert."
        note += " The tokens here need no gradient: the last message is one of a layer inside a network."
        notes = [note if self._ep > 1 else "With EP 1 every rank has all experts: no row travels."]
        heads = ", ".join([*(f"rank {r}: bytes" for r in range(RANKS)), "if balanced: bytes"])
        small = "bytes that leave a rank, predicted from these counts"
        return self._by_step("Messages", heads, rows, small=small, notes=notes, tab=True)

    def _places(self) -> Section:
        """The experts on the ranks of a group, and how unequal that makes them: in order, by hand, by EPLB."""
        each = self._experts // self._ep

        def rows(step: int) -> list[list[Any]]:
            now, made = self.routing(step), []
            one, more = (now.placed(self._ep, copies) for copies in (0, 1))
            known = {"in order": tuple(range(self._experts)), PLACEMENTS[self._placement]: self.order(step)}
            known["EPLB, one copy each"] = tuple(expert for rank in one.devices for expert in rank)
            for name, order in known.items():
                ranks = [order[first : first + each] for first in range(0, self._experts, each)]
                made.append([name, busiest_over_mean(self.sent(step, order).sum(axis=0)), ranks])
            made.append(["EPLB, a copy more on each rank", more.max_over_mean, more.devices])
            shown = (" | ".join(" ".join(map(str, sorted(rank))) for rank in ranks) for *_, ranks in made)
            return [[name, f"{over:.3g}", ranks] for (name, over, _), ranks in zip(made, shown, strict=True)]

        note = "Two copies of an expert have half of its rows each"
        note += ", rows of all groups added" if self._ep < RANKS else ""
        heads, small = "busiest over mean: number, experts of each rank: text", f"on {plural(self._ep, 'rank')}"
        return self._by_step(
            "Placement", heads, rows, small=small, notes=[f"{note}. By hand: click two experts."], tab=True
        )

    def _on_ranks(self, ran: Ran) -> Section:
        """What a run has found, next to one device, and bytes next to those of the counts."""
        rows, count = ran.rows(1, STEPS), ran.experts.size
        equal = ["EQUAL" if ran.same == count else "DIFFERENT", ran.same == count]
        rows.append([f"choices after step {STEPS}", f"{count}", f"{ran.same} as on one device", equal])
        for rank, (sent, *both) in enumerate(zip(ran.sent, *self._leaving(STEPS, self.key[2]), strict=True)):
            said = ["as predicted" if sent == sum(both) else "DIFFERENT", sent == sum(both)]
            rows.append([f"rank {rank} sends forward", f"{sent:,} B", f"{sum(both):,} B predicted from counts", said])
        columns = {"": "name", ran.source: "number", "compared with": "text", " ": "verdict"}
        return table("On ranks", columns, rows, small=f"{STEPS} steps on 4 ranks, {ran.source}", tab=True)

    def _code(self) -> str:
        factor = None if self._factor == "dropless" else float(self._factor)
        own = RANKS // self._ep
        return (
            f"moe = nn.MoE({HIDDEN}, {HIDDEN}, {self._experts}, {self._k}, router={self._router!r},\n"
            f"             capacity_factor={factor}, convention={self._convention!r}, expert_parallel={self._ep},\n"
            f"             drop_order={self.shape.drop_order!r}, groups={RANKS},\n"
            f"             balance_factor={self._balance_factor}, bias_rate={self._bias_rate})\n"
            f"models.expert_parallel(net, dp={RANKS}, ep={self._ep})\n"
            f"# gradients: of the gate summed over {RANKS} ranks, of experts over the {own} with the same ones; the\n"
            f"# loss is the mean over all tokens: nothing is divided. Local means would be divided by {RANKS}."
        )


def _times(ratio: float) -> str:
    """How long something takes that takes `ratio` times as long as balanced."""
    return "as long as balanced" if ratio == 1 else f"{ratio:.3g} x as long as balanced"
