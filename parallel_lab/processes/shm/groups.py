"""Barriers with the other members of a group: everybody says what it asks for, and sees that all ask for the same.

A group has words of its own in the arena. In its barrier number s every member writes its arrival word, then looks at
the row of all of them:

    arrivals[s & 1]   member 0 | member 1 | ...       a digest of the request, and s in two bits: the row is right when
                      all words are equal to mine
    reached           member 0 | member 1 | ...       s: who has come, whatever it asked for
    finished          member 0 | member 1 | ...       s: who has read all it needs from the others' buffers
    results[s & 1]    s << 16 | member                where a sum that one member made for all of them lies
    bells[s & 1], asleep[s & 1]                       s: a word to sleep on, and whether anybody does
    near[s & 1]                                       s: some member's value lies in its heap
    told[s & 1]       member 0 | member 1 | ...       eight such rows: s; where its value and its result lie in its
                      heap; origin and shape, compared only where they are given; its started request

A look is one comparison of the row with a prepared one. Two rows are enough: nobody comes to barrier s + 2 before all
have been at s + 1, and so have seen row s. Members that ask for different things never see an equal row; who has to
wait looks at the words one by one, and every rank raises.

The words are found through the register of the group's first member, its leader: it enters the group's digest when it
first meets there, the others look for it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Generator

import numpy as np

from ...base.errors import ParallelLabError
from ..flight import FlightEntry
from ..lines import Lines, crossing_text
from .arena import MAX_GROUPS, Arena
from .barrier import Bell, Condition, Missing, WaitLoop, WordReached
from .shared_memory import NEEDS_FENCE, fence, round_up

# barrier, place of the value + 1, place of the result + 1, origin, shape, index of the request, number, text slot
TOLD_ROWS, VALUES, RESULTS, ORIGINS, SHAPES = 8, 1, 2, 3, 4
VIEWS = 512  # kept views of members' memory per group; a training step uses few different ones


class Check:
    """What a group's members must agree on in one call: the words they write, rows to compare with by barrier number &
    3; `loose`: digests of origin and shape, compared only with members that give them too; `told`: whether this one
    does; `root`: position of the member that may stand on another line, in a call in which all tell; `agreed`: what all
    told in one that was right.
    """

    __slots__ = ("agreed", "digest", "loose", "root", "rows", "told", "words")

    def __init__(self, digest: int, members: int, loose: tuple[int, int] = (0, 0), root: int | None = None) -> None:
        self.digest, self.loose, self.root = digest, loose, root
        self.told = root is not None or any(loose)
        self.agreed: memoryview | None = None
        # bits 0 and 1: the barrier; the bit above: never 0, which is what fresh memory holds
        self.words = tuple((digest << 3) | 4 | phase for phase in range(4))
        self.rows = tuple(memoryview(array("Q", [word]) * members) for word in self.words)


class Register:
    """This rank's register of the groups it leads, and what it has read in those of others. One per run."""

    def __init__(self, arena: Arena, rank: int) -> None:
        self.arena, self.words, self.rank = arena, arena.words, rank
        self.used_words = 0
        self.read: dict[int, tuple[int, dict[int, int]]] = {}  # by leader: entries read, {digest: first word}

    def place(self, group: Group) -> int | None:
        """First word of `group`; None while its leader has not entered it. The leader enters it here."""
        leader = group.members[0]
        count_at = self.arena.map.register(leader)
        if leader == self.rank:
            return self._enter(group, count_at)
        seen, known = self.read.get(leader, (0, {}))
        count = self.words[count_at]
        if count > seen:
            fence()
            for entry in range(seen, count):
                at = count_at + 8 + 2 * entry
                known[self.words[at]] = self.words[at + 1]
            self.read[leader] = (count, known)
        return known.get(group.digest)

    def _enter(self, group: Group, count_at: int) -> int:
        words, layout = self.words, self.arena.map
        count, size = words[count_at], group.size_words
        if count >= MAX_GROUPS or self.used_words + size > layout.group_words:
            what = f"rank {self.rank} is the first member of {count} groups in one run, and no more fit"
            raise ParallelLabError(what, where=f"group {group.members}", hint="Use fewer different groups in one run")
        first = layout.groups(self.rank) + self.used_words
        self.used_words += size
        self.arena.bytes[8 * first : 8 * (first + size)] = bytes(8 * size)
        at = count_at + 8 + 2 * count
        words[at], words[at + 1] = group.digest, first
        fence()
        words[count_at] = count + 1
        return first

    def awaited(self, group: Group) -> WordReached:
        """Waiting for the leader's next entry."""
        leader = group.members[0]
        seen = self.read.get(leader, (0, {}))[0]
        return WordReached(self.words, self.arena.map.register(leader), seen + 1, leader)


class Group:
    """What a rank keeps about one group: members, words, buffers. `started`: for collectives waited for later, which
    meet apart; `seq`: barriers this rank has come to, `data_seq`: the last after which the members' buffers were in
    use; `number` of its requests here; `reads_far`: whether members read each other's own memory
    (`fast/peer_memory.py`), None: not tried.
    """

    def __init__(
        self, arena: Arena, loop: WaitLoop, register: Register, members: tuple[int, ...], *, started: bool = False
    ) -> None:
        self.arena, self.loop, self.register = arena, loop, register
        self.members, self.started, self.rank = members, started, loop.rank
        self.n, self.me = len(members), members.index(loop.rank)
        self.words = arena.words
        self.number = self.seq = self.data_seq = 0
        self.shift = 0  # of the buffers' parity against the barriers'
        self.summed_seq = -1  # the last barrier of a large sum
        self.joined = False
        # by barrier & 1: the check whose details are there, without a place; who repeats it need not tell them again
        self.has_told: list[Check | None] = [None, None]
        self.reads_far: bool | None = None
        self.row, self.expected = None, None
        digest = hashlib.blake2b(repr((members, started)).encode(), digest_size=8).digest()
        self.digest = int.from_bytes(digest, "little") or 1
        self.lines = Lines()
        self.met, self.finished = Met(self), Finished(self)
        self.call: tuple[int, int, int] = (0, 0, 0)  # index + 1, number and text slot of the started request under way
        self._views: dict[tuple, np.ndarray] = {}

    @property
    def size_words(self) -> int:
        return (4 + 2 * TOLD_ROWS) * round_up(self.n, 8) + 8

    def join(self) -> bool:
        """Find the group's words. False while the leader has not come here yet."""
        first = self.register.place(self)
        if first is None:
            return False
        n, row = self.n, round_up(self.n, 8)
        self.rows = tuple(self.words[first + p * row : first + p * row + n] for p in (0, 1))
        self.mine = tuple(first + p * row + self.me for p in (0, 1))
        self.reached = range(first + 2 * row, first + 2 * row + n)
        self.done = range(first + 3 * row, first + 3 * row + n)
        self.reached_by_me, self.done_by_me = self.reached[self.me], self.done[self.me]
        extra = first + 4 * row
        self.results, self.bells, self.asleep = (extra, extra + 1), (extra + 2, extra + 3), (extra + 4, extra + 5)
        self.near = extra + 6, extra + 7
        starts = [extra + 8 + i * row for i in range(2 * TOLD_ROWS)]
        told = [self.words[start : start + n] for start in starts]
        self.told_rows = told[:TOLD_ROWS], told[TOLD_ROWS:]
        self.compared = [self.words[starts[i] : starts[i] + 2 * row] for i in (ORIGINS, TOLD_ROWS + ORIGINS)]
        self.joined = True
        return True

    def joining(self) -> WordReached:
        """Waiting for the leader."""
        return self.register.awaited(self)

    # arriving

    def come(self, check: Check, ring: bool = True) -> bool:
        """Come to the next barrier, data written; returns whether all have. `ring`: the last one wakes sleepers."""
        if NEEDS_FENCE:
            fence()
        words = self.words
        seq = self.seq = self.seq + 1
        parity = seq & 1
        words[self.mine[parity]] = check.words[seq & 3]
        words[self.reached_by_me] = seq
        row = self.row = self.rows[parity]
        expected = self.expected = check.rows[seq & 3]
        if row != expected:
            return False
        if ring and words[self.asleep[parity]] >= seq:
            self.loop.ring(self.bell())
        return True

    def meet(self, check: Check, value_at: int = -1, result_at: int = -1) -> Generator[Condition, None, None]:
        """Tell this member's details if it has any, come to the next barrier, wait there, and compare the details."""
        if value_at >= 0 or check.told or self.started:
            self.tell(check, value_at, result_at)
        if not self.come(check):
            yield self.met
        if check.told:
            self.compare(check)

    def tell(self, check: Check, value_at: int = -1, result_at: int = -1) -> None:
        """Write this member's details for the next barrier: loose digests, and places in its heap (-1: elsewhere)."""
        seq, me = self.seq + 1, self.me
        parity = seq & 1
        barriers, values, results, origins, shapes, *call = self.told_rows[parity]
        self.has_told[parity] = None if value_at >= 0 or self.started else check
        barriers[me], values[me], results[me] = seq, value_at + 1, result_at + 1
        origins[me], shapes[me] = check.loose
        if self.started:
            for row, word in zip(call, self.call, strict=True):
                row[me] = word
        if value_at >= 0:
            self.words[self.near[parity]] = seq

    def some_near(self) -> bool:
        """Whether some member's value lies in its heap, in this barrier."""
        return self.words[self.near[self.seq & 1]] == self.seq

    def _told(self, row: int, check: Check | None = None) -> list[int]:
        """What the members told in this barrier in one of the rows; 0 of one that told nothing."""
        seq, rows = self.seq, self.told_rows[self.seq & 1]
        if check is not None and check.root is not None:
            return rows[row].tolist()  # all told it, if not now, then in an earlier call like this
        return [word if barrier == seq else 0 for barrier, word in zip(rows[0], rows[row], strict=True)]

    def places(self) -> tuple[list[int], list[int]]:
        """Where all members' values and results lie in this barrier, -1 where not in a heap."""
        if not self.some_near():
            return [-1] * self.n, [-1] * self.n
        values, results = self._told(VALUES), self._told(RESULTS)
        return [place - 1 for place in values], [place - 1 for place in results]

    def compare(self, check: Check) -> None:
        """Raise, on every rank, if members gave different loose digests. All ranks name the same two."""
        compared = self.compared[self.seq & 1]
        if check.agreed == compared:
            return
        origins, shapes = self._told(ORIGINS, check), self._told(SHAPES, check)
        differing = self.lines.differing(origins, check.root)
        if differing is not None:
            self.differ(*differing)
        if self.me == check.root and (crossing := self.lines.crossing()) is not None:
            entry = self.arena.last_entry(self.rank)
            self.loop.warn(crossing_text(crossing, entry.origin if entry is not None else ""))
        if check.loose[1]:
            first, *others = (member for member in range(self.n) if shapes[member])
            for member in others:
                if shapes[member] != shapes[first]:
                    self.differ(first, member)
        if check.root is not None:
            check.agreed = memoryview(array("Q", compared))

    def take_other_buffer(self, for_sum: bool) -> None:
        """After a large sum (`fast/large_sum.py`) members may still read from the second half of the buffer whose turn
        it is: take the other one. Only another sum leaves that half alone before its barrier, and it had better take
        the same buffer again: less memory passes through the cache.
        """
        if self.summed_seq == self.seq and not for_sum:
            self.shift ^= 1

    def finish(self) -> None:
        """This rank has read all it needs from the members' buffers."""
        if NEEDS_FENCE:
            fence()
        self.words[self.done_by_me] = self.data_seq = self.seq

    def all_finished(self) -> Generator[Condition, None, None]:
        """Wait until all members have read all they need from this rank's memory."""
        while not self.finished.test():
            yield self.finished

    def give_back(self, check: Check) -> Generator[Condition, None, None]:
        """Meet once more after reading values where they lie: they belong to their ranks again when all have come."""
        if not self.come(check):
            yield self.met
        self.check_held()

    def check_held(self) -> None:
        """Raise if the run has been stopped. Asked after the last look into arrays of other members: one that has heard
        of a fault does not wait for this rank any more, and may have used its array for something else.
        """
        self.loop.check_abort()

    def announce(self, member: int) -> None:
        """The sum that all wait for lies with `member`."""
        if NEEDS_FENCE:
            fence()
        seq = self.seq
        self.words[self.results[seq & 1]] = seq << 16 | member
        if self.words[self.asleep[seq & 1]] >= seq:
            self.loop.ring(self.bell())

    def bell(self) -> Bell:
        """What rings in this barrier."""
        seq = self.seq
        return self.bells[seq & 1], self.asleep[seq & 1], seq

    def announced(self) -> int:
        """The member with which the sum lies."""
        return self.words[self.results[self.seq & 1]] & 0xFFFF

    # looking

    def examine(self) -> None:
        """Raise if members are here that ask for different things. All ranks name the same two."""
        words, seq, row = self.words, self.seq, self.row
        here = [member for member, at in enumerate(self.reached) if words[at] == seq]
        fence()
        for member in here[1:]:
            if row[member] != row[here[0]]:
                self.differ(here[0], member)

    def missing(self) -> Missing | None:
        """The first member that has not come to this barrier."""
        words, seq = self.words, self.seq
        for member, at in enumerate(self.reached):
            if words[at] < seq:
                return self.members[member], at, seq, self.started
        return None

    def differ(self, one: int, other: int) -> None:
        """Raise, on every rank, that two members ask for different things."""
        entries = [self._entry(member) for member in (one, other)]
        self.loop.differ(*entries, self.members[one], self.members[other])

    def _entry(self, member: int) -> FlightEntry | None:
        """The request with which a member has come to this barrier."""
        rank = self.members[member]
        if not self.started:
            return self.arena.last_entry(rank)
        index, number, slot = (self._told(row)[member] for row in range(SHAPES + 1, TOLD_ROWS))
        return self.arena.entry(rank, index - 1, number, slot)

    # memory

    def view(self, start: int, dtype: np.dtype, count: int) -> np.ndarray:
        """`count` elements at byte `start` of the block, flat."""
        key = (start, dtype, count)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= VIEWS:
                self._views.clear()
            found = self._views[key] = np.frombuffer(self.arena.bytes, dtype, count, start)
        return found


class Met(Condition):
    """Waiting until all members have come to the barrier, and ask for the same."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def bell(self) -> Bell:
        return self.group.bell()

    def test(self) -> bool:
        group = self.group
        return group.row == group.expected

    def examine(self) -> None:
        self.group.examine()

    def missing(self) -> Missing | None:
        return self.group.missing()


class Finished(Condition):
    """Waiting until all members have read what they need from this rank's memory."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def test(self) -> bool:
        return self.missing() is None

    def missing(self) -> Missing | None:
        """A member that still reads what this rank gave."""
        group = self.group
        words, seq = group.words, group.data_seq
        for member, at in enumerate(group.done):
            # a member that has come to a later barrier has finished this one
            if words[at] < seq and words[group.reached[member]] <= seq and member != group.me:
                return group.members[member], at, seq, group.started
        return None
