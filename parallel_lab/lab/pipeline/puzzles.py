"""The puzzles of lesson 09: a pipeline over a slow border, whose schedule is made by hand.

    puzzle = find_puzzle("09.2 4x8 cap 4")
    puzzle.borders, puzzle.par                  (0.0, 2.0, 0.0), 30.0
    puzzle.length(schedule)                     its step on these borders; par: none under the cap is shorter

Two machines hold the ranks, so a message across one border takes longer. No schedule with a name is best then, and no
search of the package knows borders. Pars were found and proved by branch and bound with the messages of each border;
tests/lab/test_puzzles.py proves them again. No schedule at par is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.errors import ArgumentError, shorten
from ...cost.schedules import Schedule, Timing, make_schedule
from ...cost.schedules.naming import all_named
from ...cost.schedules.order import loop
from .settings import Settings, delays

# of each number of stages and micro-batches: time of a message across each border, time of a whole backward or of B
# and W, and par under each cap
BY_HAND = {
    (3, 6): ((0, 2), (1, 1, 0), {3: 24}),
    (3, 7): ((0, 2), (1, 1, 0), {4: 24}),
    (3, 8): ((0, 2), (1, 1, 0), {3: 32}),
    (3, 10): ((0, 2), (1, 1, 0), {3: 40}),
    (3, 12): ((0, 2), (1, 1, 0), {3: 44}),
    (3, 14): ((0, 2), (1, 1, 0), {3: 52}),
    (4, 6): ((0, 0, 2), (1, 1, 0), {4: 26}),
    (4, 7): ((0, 2, 0), (1, 1, 0), {4: 28}),
    (4, 8): ((0, 2, 0), (1, 1, 0), {4: 30}),
    (4, 10): ((0, 2, 0), (1, 1, 0), {4: 38}),
    (4, 12): ((0, 2, 0), (1, 1, 0), {4: 42}),
    (4, 14): ((0, 2, 0), (1, 1, 0), {4: 50}),
    (6, 7): ((0, 0, 0, 2, 0), (1, 1, 0), {6: 32}),
    (6, 8): ((0, 0, 0, 2, 0), (1, 1, 0), {6: 34}),
    (6, 10): ((0, 0, 2, 0, 0), (1, 1, 0), {6: 38}),
    (6, 12): ((0, 0, 2, 0, 0), (1, 1, 0), {6: 42}),
}
DIVIDED = {
    (3, 6): ((0, 3), (1, 1, 1), {3: 32, 5: 26}),
    (3, 7): ((0, 3), (1, 1, 1), {3: 39, 6: 26}),
    (3, 8): ((0, 3), (1, 1, 1), {3: 42, 6: 29}),
    (3, 10): ((0, 3), (1, 1, 1), {3: 52, 6: 35}),
    (3, 12): ((0, 3), (1, 1, 1), {3: 58, 6: 41}),
    (4, 7): ((0, 3, 0), (1, 1, 1), {4: 36, 8: 27}),
    (4, 8): ((0, 4, 0), (1, 1, 1), {4: 43, 8: 31}),
    (4, 10): ((0, 3, 0), (1, 1, 1), {4: 49, 8: 36}),
    (4, 12): ((0, 3, 0), (1, 1, 1), {4: 55, 8: 42}),
    (4, 14): ((0, 3, 0), (1, 1, 1), {4: 65, 8: 48}),
}


@dataclass(frozen=True)
class Puzzle:
    """One puzzle: stages and micro-batches, memory for `cap` micro-batches, and par, the length of a shortest step.

    number   of the exercise: "09.2", or "09.3", where backward is divided into B and W
    times    of F, B and W;  borders: of a message between rank k and k + 1
    """

    number: str
    stages: int
    micro_batches: int
    cap: int
    par: float = field(repr=False)
    times: tuple[float, float, float]
    borders: tuple[float, ...]

    @property
    def name(self) -> str:
        """As `find_puzzle` reads it."""
        return f"{self.number} {self.stages}x{self.micro_batches} cap {self.cap}"

    @property
    def divided(self) -> bool:
        """Whether W is an action of its own."""
        return self.times[2] > 0

    @property
    def settings(self) -> Settings:
        """Those of its lab, where one micro-batch goes after the other."""
        kinds = "FBW" if self.divided else "FB"
        lanes = (" ".join(f"{r}{k}{n}" for n in range(self.micro_batches) for k in kinds) for r in range(self.stages))
        begin = Schedule.from_text("\n".join(lanes), holds=loop(self.stages, 1))
        how = {"times": self.times, "latency": self.borders, "cap": self.cap, "drawn": begin}
        return Settings(stages=self.stages, micro_batches=self.micro_batches, **how)

    @property
    def slowest(self) -> int:
        """The rank before the slowest border."""
        return self.borders.index(max(self.borders))

    def timing(self, schedule: Schedule) -> Timing:
        """When the actions of a schedule that can run do so, on these borders."""
        return schedule.clock(*self.times, latency=delays(self.borders))

    def length(self, schedule: Schedule) -> float:
        """Its step."""
        return self.timing(schedule).makespan

    def solved(self, settings: Settings) -> bool:
        """Whether the schedule of a lab is complete, keeps to the cap, and is at par."""
        drawn = settings.schedule
        mine = settings.given == self.settings.given and drawn.holds == loop(self.stages, 1)
        whole = mine and settings.timed.complete and drawn.splits_backward == self.divided
        return whole and not drawn.check(self.cap) and self.length(drawn) <= self.par * (1 + 1e-9)

    @property
    def rules(self) -> str:
        """What is given, in words."""
        times = "F, B and W take 1 each" if self.divided else f"F takes 1, B {self.times[1]:g}"
        slow = [f"{t:g} between ranks {k} and {k + 1}" for k, t in enumerate(self.borders) if t]
        held = f"{self.stages} ranks, {self.micro_batches} micro-batches, memory for {self.cap}"
        return f"{held}. {times}. A message takes {' and '.join(slow)}, elsewhere no time."


def puzzles_of(number: str, stages: int, micro_batches: int) -> tuple[Puzzle, ...]:
    """Those of an exercise for these sizes, by their caps."""
    borders, times, pars = {"09.2": BY_HAND, "09.3": DIVIDED}[number][stages, micro_batches]
    return tuple(Puzzle(number, stages, micro_batches, cap, par, times, borders) for cap, par in pars.items())


def find_puzzle(name: str) -> Puzzle:
    """The puzzle of a name. Raises ArgumentError for another one."""
    every = ((number, *sizes) for number, table in (("09.2", BY_HAND), ("09.3", DIVIDED)) for sizes in table)
    for puzzle in (one for of in every for one in puzzles_of(*of)):
        if puzzle.name == name:
            return puzzle
    raise ArgumentError(f"puzzle {shorten(name)}", where="PipelineLab", allowed='Such as "09.2 4x8 cap 4"')


def recognised(schedule: Schedule) -> str:
    """What a schedule that somebody has drawn is known as, in a sentence or two; "" where it has no name."""
    chunks = max(1, schedule.parts // len(schedule))
    for name, one in sorted(all_named().items()):
        if one.chunks in (None, chunks) and not one.allowed(len(schedule), schedule.micro_batches, chunks):
            known = make_schedule(name, len(schedule), schedule.micro_batches, chunks)
            if (known.holds, known.ranks, known.together) == (schedule.holds, schedule.ranks, schedule.together):
                words = " ".join((one.make.__doc__ or "").partition("\n\n")[0].split())
                return f"This is {_title(name)} ({name}). {words}"
    return ""


def _title(name: str) -> str:
    """
    >>> _title("zb_h2"), _title("v_half")
    ('ZB-H2', 'V-Half')
    """
    known = {"gpipe": "GPipe", "dualpipe": "DualPipe", "dualpipe_v": "DualPipe-V"}
    words = (word.upper() if len(word) < 3 or word[0] == "1" else word.capitalize() for word in name.split("_"))
    return known.get(name) or "-".join(words)
