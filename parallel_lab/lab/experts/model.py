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

from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...base.settings.current import default_settings
from ...base.system import without_processes
from ...base.units import plural
from ...ops.expert_balance import bias_change, load_of
from ...ops.expert_capacity import CONVENTIONS
from ...ops.expert_rows import busiest_over_mean, bytes_leaving
from ..shared.lab import setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import RunsOneThing, executor_of
from ..shared.sections import Section, code, table
from .net import HIDDEN, RANKS, ROW_BYTES, STEPS, TOKENS, Order, Routing, Shape, routings, trained
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
LOOKED_AT = {0: "0", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16", STEPS: str(STEPS)}
WAYS = {"there": "dispatch", "back": "combine"}

PARTS = ("flow", "exchange", "over", "more")  # of the view


class ExpertLab(RunsOneThing):
    """One layer of experts over 32 tokens of 16 float32 numbers, 8 on each of 4 ranks.

    experts, k, router   4, 6, 8 or 16; of each token 1, 2, 4 or 8; one of `ops.routing.ROUTERS`
    factor, convention   "dropless", or slots by a capacity factor, "0" to "2"; one of `ops.expert_capacity.CONVENTIONS`
    ep                   ranks next to each other that share the experts out: 1, 2 or 4
    skew                 of the kinds of tokens: 0 is even
    bias_rate, balance_factor   what a step adds to the selection bias; the factor of the balance loss
    placement            of the experts on the ranks: "order", "eplb" or "hand"

    Raises ArgumentError for values that are not offered, and for those that do not fit.
    """

    scripts, styles = ("experts/story.js", "experts/expert_lab.js"), ("experts/expert_lab.css",)
    commands = ("pick", "run_simulated", "run_measured", "stop", *COMMANDS)
    replayed: ClassVar[tuple[str, ...]] = ("ep", "placement", "balance_factor", "factor", "bias_rate", "skew")
    frame_height_px = 800

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
        super().__init__()
        self.hide(controls)
        self.story = story
        self._step, self._token, self._way = STEPS, 5, "there"
        self._hand: Order = tuple(range(EXPERTS[0]))
        self._held: int | None = None  # the expert that was picked first
        self._ran: dict[Key, Ran] = {}
        self._begin(
            experts=experts, k=k, router=router, factor=factor, convention=convention, ep=ep, skew=skew,
            bias_rate=bias_rate, balance_factor=balance_factor, placement=placement,
        )  # fmt: skip
        self._update()

    @setting("experts", EXPERTS)
    def set_experts(self, experts: int) -> None:
        """Another number of experts."""

    @setting("top k", KS)
    def set_k(self, k: int) -> None:
        """Experts of each token."""

    @setting("router", ROUTER_NAMES)
    def set_router(self, router: str) -> None:
        """How scores become choices and weights."""

    @setting("capacity", FACTORS)
    def set_factor(self, factor: str) -> None:
        """Slots of an expert, as a multiple of what alike experts need; "dropless": as many rows as come."""

    @setting("rule", list(CONVENTIONS))
    def set_convention(self, convention: str) -> None:
        """Whose capacity factor it is."""

    @setting("EP", EPS)
    def set_ep(self, ep: int) -> None:
        """How many ranks share the experts out."""

    @setting("skew", SKEWS)
    def set_skew(self, skew: int) -> None:
        """How unequally frequent the kinds of tokens are."""

    @setting("bias rate", BIAS_RATES)
    def set_bias_rate(self, bias_rate: str) -> None:
        """What a step adds to the selection bias of an expert with too little to do."""

    @setting("loss factor", BALANCE_FACTORS)
    def set_balance_factor(self, balance_factor: str) -> None:
        """The factor of the balance loss."""

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

    @setting("step", LOOKED_AT, look=True)
    def set_step(self, step: int) -> None:
        """The training step after which the router is looked at."""

    @setting("token", range(RANKS * TOKENS), look=True)
    def set_token(self, token: int) -> None:
        """The token whose way is drawn dark."""

    @setting("way", WAYS, look=True)
    def set_way(self, way: str) -> None:
        """Which of the two messages is shown: to the experts, or back."""

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

    def run_simulated(self) -> None:
        """Train the net on 4 simulated ranks, and on one device. Returns at once; `wait()` waits."""
        self._run_as("simulated")

    def run_measured(self) -> None:
        """The same on worker processes, one per rank."""
        self._run_as("measured")

    def _run_as(self, source: str) -> None:
        why = without_processes() if source == "measured" else ""
        source, key = "simulated" if why else source, self.key
        train = partial(run_on_ranks, key, executor_of(source), source, self._go_on)

        def work() -> str:
            ran = train()
            with self._lock:
                self._ran[key] = ran
            equal = "EQUAL to rounding" if ran.apart <= ran.bound else "DIFFERENT"
            text = f"{source}: {STEPS} steps on {RANKS} ranks and on one device: losses {equal}, "
            return f"{text}{ran.same} of {ran.experts.size} choices the same{'; ' if why else ''}{why}"

        self._start(f"{source}: {STEPS} steps on {RANKS} ranks, EP {self._ep}", work)

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

    @property
    def ran(self) -> Ran | None:
        """What the last run of these settings has found."""
        return self._ran.get(self.key)

    def routing(self, step: int) -> Routing:
        """What the router says after so many steps."""
        return routings(self.shape)[step]

    def order(self, step: int) -> Order:
        """The experts in the order of their places: the first E / EP lie on the first rank of each group."""
        if self._placement == "eplb":
            return tuple(expert for rank in self.routing(step).placed(self._ep).devices for expert in rank)
        return self._hand if self._placement == "hand" else tuple(range(self._experts))

    def sent(self, step: int) -> np.ndarray:
        """Rows that each rank gives each on the way to the experts, (4, 4)."""
        return self.routing(step).sent(self._ep, self.order(step))

    def travelling(self, step: int) -> np.ndarray:
        """The same with what the message really carries: where there are slots, empty ones, too."""
        room = self.shape.room
        return self.sent(step) if room is None else self._even(self._experts // self._ep * room)

    def _even(self, rows: int) -> np.ndarray:
        """(4, 4): so many rows from each rank to each of its group."""
        return np.kron(np.eye(RANKS // self._ep, dtype=int), np.full((self._ep, self._ep), rows))

    @property
    def balanced(self) -> np.ndarray:
        """The same if every expert were chosen as often, and nothing was dropped or empty."""
        return self._even(TOKENS * self._k // self._ep)

    # ---- what is shown ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data."""
        with self._lock:
            leads = {str(step): self._lead(step) for step in LOOKED_AT}
            return {
                "version": 1,
                "title": "Expert Lab",
                "status": leads[str(self._step)],
                "leads": leads,
                **self.chosen(),
                "held": self._held,
                "sections": {
                    "flow": self._flow(),
                    "exchange": self._exchange(),
                    "over": self._over(),
                    "router": self._scores(),
                    "messages": self._messages(),
                    "places": self._places(),
                    "gradients": self._gradients(),
                    **({"ran": self._on_ranks(self.ran)} if self.ran else {}),
                    "python": code("Code", self._code(), tab=True),
                },
                "run": self._run.to_dict(),
                "predict": self.asked(),
            }

    def questions(self) -> list[Question]:
        """Rows of the busiest rank; bytes that leave a rank if balanced; slots of an expert."""
        shape, step, hides = self.shape, self._step, PARTS
        about = f"{self.shape}, EP {self._ep}, {self._placement}"
        rows = self.sent(step).sum(axis=0)
        text = f"How many rows does the busiest of the 4 ranks get after {plural(step, 'step')}? "
        text += f"The mean is {rows.mean():g}."
        why = f"the ranks get {', '.join(map(str, rows))}"
        asks = [Question(f"{about}, rows {step}", text, (int(rows.max()),), why, unit="rows", within=0.1, hides=hides)]
        leaving = 2 * bytes_leaving(self.balanced, ROW_BYTES)[0]
        text = "If all experts were chosen alike: how many bytes leave a rank forward, dispatch and combine, dropless?"
        why = f"2 x {TOKENS * self._k} rows of {ROW_BYTES} B; a share of 1 / {self._ep} stays on the rank"
        asks.append(Question(f"{about}, bytes", text, (leaving,), why, unit="B", hides=hides))
        if (room := shape.room) is not None:
            text = f"How many slots has an expert for the {TOKENS} tokens of a rank, by {self._convention}?"
            why = f"{TOKENS * self._k} choices, {self._experts} experts, factor {self._factor}, as it counts and rounds"
            asks.append(Question(f"{about}, slots", text, (room,), why, unit="slots", hides=hides))
        return asks

    def _lead(self, step: int) -> str:
        rows, routing = self.sent(step).sum(axis=0), self.routing(step)
        most, mean, dropped = int(rows.max()), rows.mean(), int((~routing.kept).sum())
        who = f"Rank {int(rows.argmax())} gets" if (rows == most).sum() == 1 else "Ranks get up to"
        rows_of = f"{who} {most} rows, mean {mean:.3g}" if most > mean else f"Every rank gets {most} rows"
        drops = f"{dropped} of {routing.kept.size} choices {'is' if dropped == 1 else 'are'} dropped"
        drops = drops if dropped else "no choice is dropped"
        if (room := self.shape.room) is None:
            return f"{rows_of}: the layer takes {_times(most / mean)}; {drops}."
        slots = self._experts * room
        return f"{rows_of}; {drops}; each computes {slots} slots, {_times(slots / (TOKENS * self._k))}."

    def _flow(self) -> Section:
        """A row for each expert on each rank; for the picture: the tokens that it keeps, and those that it drops."""
        of = {}
        for step in LOOKED_AT:
            routing, order, columns, rows = self.routing(step), self.order(step), [], []
            each = self._experts // self._ep
            change = bias_change(load_of(routing.experts, self._experts), 1.0) if float(self._bias_rate) else None
            biases = zip(routing.bias, () if change is None else change, strict=change is not None)
            for rank in range(RANKS):
                first, place = rank // self._ep * self._ep, rank % self._ep
                for expert in order[place * each : (place + 1) * each]:
                    kept, dropped = [], []
                    for home in range(first, first + self._ep):
                        token, choice = np.nonzero(routing.experts[home] == expert)
                        for t, c in zip(token.tolist(), choice.tolist(), strict=True):
                            (kept if routing.kept[home, t, c] else dropped).append(home * TOKENS + t)
                    columns.append([rank, expert, kept, dropped])
                    bias = f"{routing.bias[expert]:+.2f}" if change is not None else None
                    rows.append([f"expert {expert} on rank {rank}", len(kept), len(dropped) or "", bias or ""])
            of[str(step)] = {
                "rows": rows,
                "columns_of": columns,
                "weights": [[float(f"{w:.3g}") for w in own] for own in routing.weights.reshape(-1, self._k)],
                "chosen": routing.experts.reshape(-1, self._k).tolist(),
                "kept": routing.kept.reshape(-1, self._k).astype(int).tolist(),
                "bias": [[round(float(b), 3), int(c)] for b, c in biases],
                "small": f"after {plural(step, 'step')}" if step else "untrained",
            }
        room, own = self.shape.room, self._experts // self._ep
        more = {"room": room, "ep": self._ep, "experts": self._experts, "tokens": TOKENS, "ranks": RANKS}
        heads = {"": "name", "rows": "count bar", "dropped": "count", "bias": "text"}
        note = f"Line: {plural(room or 0, 'slot')} of an expert for each rank's tokens; hatched above it: dropped. "
        note += f"To each rank {own} x {room} rows travel, empty ones too." if self._ep > 1 else ""
        notes = [] if room is None else [note]
        return {**table("Rows of each expert", heads, by=["step"], of=of, notes=notes), **more}

    def _exchange(self) -> Section:
        """Rows of the two messages: a row sends, a column receives."""
        of = {}
        for step in LOOKED_AT:
            for way in WAYS:
                sent = self.sent(step) if way == "there" else self.sent(step).T
                rows = [[f"rank {r}", *map(int, row), int(row.sum())] for r, row in enumerate(sent)]
                received = sent.sum(axis=0)
                rows.append(["receives", *map(int, received), ""])
                of[f"{step}|{way}"] = {"rows": rows}
        columns = {"": "name", **{f"to {r}": "number" for r in range(RANKS)}, "sends": "number"}
        return table("Rows that travel", columns, by=["step", "way"], of=of, small="from a row to a column")

    def _over(self) -> Section:
        """The balance at every step, of ranks and of experts."""
        losses, steps = trained(self.shape)
        ranks = [busiest_over_mean(self.sent(step).sum(axis=0)) for step in range(STEPS + 1)]
        experts = [busiest_over_mean(load_of(routing.experts, self._experts)) for routing in steps]
        dropped = [int((~routing.kept).sum()) for routing in steps]
        rows = [
            [str(s), f"{ranks[s]:.3g}", f"{experts[s]:.3g}", dropped[s], f"{losses[s]:.3g}" if s < STEPS else "-"]
            for s in LOOKED_AT
        ]
        columns = {
            "step": "name",
            "busiest rank": "number",
            "busiest expert": "number",
            "dropped": "count",
            "loss": "text",
        }
        lines = {"ranks": [round(x, 3) for x in ranks], "chosen": [round(x, 3) for x in experts], "dropped": dropped}
        return {**table("Busiest over mean, step by step", columns, rows), "lines": lines}

    def _scores(self) -> Section:
        """What the router says of one token: logits z, scores p, the chosen and their weights."""
        of, home, t = {}, self._token // TOKENS, self._token % TOKENS
        for step in LOOKED_AT:
            now, rows = self.routing(step), []
            chosen, weights = now.experts[home, t].tolist(), now.weights[home, t].tolist()
            for expert in range(self._experts):
                at = chosen.index(expert) if expert in chosen else None
                z, p, bias = (
                    float(each) for each in (now.logits[home, t, expert], now.scores[home, t, expert], now.bias[expert])
                )
                said = (
                    "" if at is None else f"choice {at + 1}" if now.kept[home, t, at] else f"choice {at + 1}, dropped"
                )
                weight = "" if at is None else f"{weights[at]:.3f}"
                rows.append([f"expert {expert}", f"{z:.3f}", f"{p:.3f}", f"{bias:+.3f}", said, weight])
            of[str(step)] = {"rows": rows}
        columns = {"": "name", "z": "number", "p": "number", "bias": "number", "chosen": "text", "weight": "number"}
        small = f"of rank {home}; {ROUTER_NAMES[self._router]}; the bias counts for the choice alone"
        return table(f"Router of token {self._token}", columns, by=["step"], of=of, small=small, tab=True)

    def _messages(self) -> Section:
        """Bytes that leave each rank in the four messages of a step."""
        balanced = bytes_leaving(self.balanced, ROW_BYTES)
        columns = {"": "name", **{f"rank {r}": "bytes" for r in range(RANKS)}, "if balanced": "bytes"}
        of = {}
        for step in LOOKED_AT:
            there, back = (bytes_leaving(rows, ROW_BYTES) for rows in (self.travelling(step), self.travelling(step).T))
            kind = "all_to_all_v" if self.shape.room is None else "all_to_all"
            names = f"dispatch, {kind}", "combine", "gradient of combine", "gradient of dispatch"
            rows = [[name, *sizes, balanced[0]] for name, sizes in zip(names, (there, back, there, back), strict=True)]
            of[str(step)] = {"rows": rows}
        note = (
            "Counts of all ranks travel first: 4 B for each expert."
            if self.shape.room is None
            else "Slots travel, empty ones too."
        )
        notes = [note] if self._ep > 1 else ["With EP 1 every rank has all experts: no row travels."]
        small = "bytes that leave a rank, predicted from these counts"
        return table("Messages", columns, by=["step"], of=of, small=small, notes=notes, tab=True)

    def _places(self) -> Section:
        """The experts on the ranks of a group, and how unequal that makes them: in order, by hand, by EPLB."""
        of, each = {}, self._experts // self._ep
        for step in LOOKED_AT:
            now, rows = self.routing(step), []
            known = {"in order": tuple(range(self._experts)), PLACEMENTS[self._placement]: self.order(step)}
            for name, order in known.items():
                ranks = " | ".join(" ".join(map(str, order[p * each : (p + 1) * each])) for p in range(self._ep))
                rows.append([name, f"{busiest_over_mean(now.sent(self._ep, order).sum(axis=0)):.3g}", ranks])
            for more, name in enumerate(("EPLB, one copy each", "EPLB, a copy more on each rank")):
                placed = now.placed(self._ep, more)
                ranks = " | ".join(" ".join(map(str, sorted(rank))) for rank in placed.devices)
                rows.append([name, f"{placed.max_over_mean:.3g}", ranks])
            of[str(step)] = {"rows": rows}
        columns = {"": "name", "busiest over mean": "number", "experts of each rank": "text"}
        note = (
            "Two copies of an expert have half of its rows each. Click two experts in the picture: they change places."
        )
        small = f"on {plural(self._ep, 'rank')}"
        return table("Placement", columns, by=["step"], of=of, small=small, notes=[note], tab=True)

    def _gradients(self) -> Section:
        """Whose gradients are summed over which ranks."""
        copies = RANKS // self._ep
        groups = [tuple(range(place, RANKS, self._ep)) for place in range(self._ep)]
        said = "no message: one rank has it" if copies == 1 else " and ".join(map(str, groups))
        everyone = str(tuple(range(RANKS)))
        rows = [["gate", everyone, "1"], ["up, down", said, "1"], ["bias", "none: it follows from the loads", ""]]
        rows[1][2] = f"{RANKS}, not {copies}" if copies != RANKS else f"{RANKS}"
        rows[0][2] = f"{RANKS}"
        note = (
            "The loss here is the mean over all 32 tokens, so gradients are summed and nothing is divided; where each "
        )
        note += "rank's loss is the mean over its own tokens, all are divided by the 4 ranks, those of experts too."
        columns = {"": "name", "summed over ranks": "text", "divided, if losses are local means, by": "text"}
        return table("Gradients", columns, rows, notes=[note], tab=True)

    def _on_ranks(self, ran: Ran) -> Section:
        """What a run has found, next to one device."""
        rows: list[list[Any]] = []
        for step in (0, STEPS - 1):
            rows.append(
                [f"loss of step {step + 1}", f"{ran.losses[step]:.7g}", f"{ran.single[step]:.7g} on one device", ""]
            )
        equal = ran.apart <= ran.bound
        verdict = ["EQUAL to rounding" if equal else "DIFFERENT", equal]
        rows.append(["largest difference", f"{ran.apart:.1e}", f"at most {ran.bound:.1e}", verdict])
        count, equal = ran.experts.size, ran.same == ran.experts.size
        verdict = ["EQUAL" if equal else "DIFFERENT", equal]
        rows.append([f"choices after step {STEPS}", f"{count}", f"{ran.same} as on one device", verdict])
        columns = {"": "name", ran.source: "number", "compared with": "text", " ": "verdict"}
        return table("On ranks", columns, rows, small=f"{STEPS} steps on 4 ranks, {ran.source}", tab=True)

    def _code(self) -> str:
        factor = None if self._factor == "dropless" else float(self._factor)
        lines = [
            f"moe = nn.MoE({HIDDEN}, {HIDDEN}, {self._experts}, {self._k}, router={self._router!r},",
            f"             capacity_factor={factor}, convention={self._convention!r}, expert_parallel={self._ep},",
            f"             groups=4, balance_factor={self._balance_factor}, bias_rate={self._bias_rate})",
            f"models.expert_parallel(net, dp=4, ep={self._ep})",
        ]
        return "\n".join(lines)


def _times(ratio: float) -> str:
    """How long something takes that takes `ratio` times as long as balanced."""
    return "as long as balanced" if ratio == 1 else f"{ratio:.3g} x as long as balanced"
