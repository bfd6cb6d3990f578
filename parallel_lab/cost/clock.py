"""The one clock of all predictions: lanes work through tasks, in order; messages travel between them.

    a task starts       after its lane's last one, after what it needs, and when a core is free
    a message starts    when all its members have come to it and their lines are free

    lane 0  |work      |come to m|                |work |
    lane 1  |work                  |come to m, need m   |work |
                                   |m on the lines |

Feeders say what tasks are: actions of a schedule (`schedules/clock.py`), instructions of a plan (`timeline.py`), what
the simulator's ranks ran (`simulated_clock.py`), gradients and their buckets (`overlap.py`). So what is predicted and
what is simulated cannot differ.

    >>> ends = []
    >>> clock = Clock([[Task(2.0, gives=("x",))], [Task(1.0), Task(1.0, needs=(("x", 0.5),))]])
    >>> clock.run(lambda lane, task, came_s, start_s, end_s: ends.append((lane, end_s)))
    >>> sorted(ends)
    [(0, 2.0), (1, 1.0), (1, 3.5)]

Times are numbers, or arrays with an element per rank of a lane: then `later` is `numpy.maximum`. A lane runs on until
it needs what is not there yet; only lanes that share cores are looked at in order of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .shared_cores import SharedCores

Time = Any  # seconds: a float, or an array of them
Needs = Sequence[tuple[Hashable, float]]


class Message:
    """What lanes hand over together; `None` where it is not known yet.

    took_s     how long it travels;  members: the lanes that must have come to it
    line       on which line of every member it travels, one message after the other; None: none is occupied
    after      keys that must be there; they are when the lane comes
    key        what is there when it ends; None: the message itself
    came       lane -> when it came;  begin_s, end_s: when it travels
    """

    __slots__ = ("after", "begin_s", "came", "end_s", "key", "line", "members", "took_s")

    def __init__(
        self,
        took_s: Time,
        members: Sequence[int],
        line: Hashable = None,
        key: Hashable = None,
        after: Sequence[Hashable] = (),
    ) -> None:
        self.took_s, self.members, self.line, self.after = took_s, members, line, after
        self.key = self if key is None else key
        self.came: dict[int, Time] = {}
        self.begin_s: Time = None
        self.end_s: Time = None

    def travel(self, begin_s: Time) -> tuple[Time, Time]:
        """When it begins and ends if it can begin at `begin_s`."""
        return begin_s, begin_s + self.took_s


class Task(NamedTuple):
    """A step of a lane.

    work_s    seconds on a core; None: it needs no core
    needs     (key, seconds that it takes to come here) of everything that must be there
    gives     keys that are there when it ends;  rest_s: seconds that the lane goes on with afterwards
    message   the message that the lane comes to, before it waits for its needs
    owner     tasks in a row with the same owner keep their core
    what      the feeder's own
    """

    work_s: Time = None
    needs: Needs = ()
    gives: tuple[Hashable, ...] = ()
    rest_s: Time = 0.0
    message: Message | None = None
    owner: Any = None
    what: Any = None


Done = Callable[[int, Task, Time, Time, Time], object]  # lane, task, when it came, began, ended


class Clock:
    """Lanes of tasks.

    cores    those that all lanes share (`shared_cores.py`); None: each has its own
    later    the later of two times
    starts   when each lane starts; default: 0
    there    key -> when it was there;  free_s: (lane, line) -> when the line is free
    at_s     when each lane has come to its task;  tasks: that task, None when the lane is done
    """

    def __init__(
        self,
        lanes: Sequence[Iterable[Task]],
        cores: SharedCores | None = None,
        later: Callable[[Time, Time], Time] = max,
        starts: Sequence[Time] | None = None,
    ) -> None:
        self.lanes = [iter(lane) for lane in lanes]
        self.tasks: list[Task | None] = [next(lane, None) for lane in self.lanes]
        self.at_s: list[Time] = [0.0] * len(lanes) if starts is None else list(starts)
        self.later, self.cores = later, cores
        self.there: dict[Hashable, Time] = {}
        self.free_s: dict[tuple[int, Hashable], Time] = {}
        self._waiting: dict[Hashable, list[int]] = {}
        self._lines: dict[tuple[int, Hashable], deque[Message]] = {}
        self._ready: list[int] = []  # lanes that can go on; with shared cores these have their turns

    def run(self, done: Done) -> None:
        """Until no lane can go on. `done(lane, task, came_s, start_s, end_s)` is called at the end of each task."""
        if self.cores is None:
            self._ready += range(len(self.lanes))
            while self._ready:
                self._go_on(self._ready.pop(), done)
            return
        for lane in range(len(self.lanes)):
            self.cores.at(0.0, lane)
        for lane, began_s in self.cores.turns():
            self._go_on(lane, done, began_s)

    def _go_on(self, lane: int, done: Done, began_s: Time | None = None) -> None:
        """As far as it can; `began_s`: when the work began that has ended now on a shared core."""
        there, later, cores, waiting = self.there, self.later, self.cores, self._waiting
        tasks, feeder, at_s = self.tasks, self.lanes[lane], self.at_s
        while (task := tasks[lane]) is not None:
            work_s, needs, gives, rest_s, message, owner, _ = task
            came_s = start_s = at_s[lane]
            if cores is not None and began_s is not None:
                start_s, end_s, began_s = began_s, cores.now, None
            else:
                if message is not None and lane not in message.came:
                    message.came[lane] = came_s
                    if message.line is not None:
                        self._lines.setdefault((lane, message.line), deque()).append(message)
                    self._set_off(message)
                for key, delay_s in needs:
                    if key not in there:
                        waiting.setdefault(key, []).append(lane)
                        return
                    start_s = later(start_s, there[key] + delay_s)
                if cores is None:
                    end_s = start_s if work_s is None else start_s + work_s
                elif start_s > cores.now:
                    return cores.at(start_s, lane)
                elif work_s is not None:
                    return cores.work(lane, work_s, owner)
                else:
                    end_s = cores.now
            tasks[lane] = next(feeder, None)
            at_s[lane] = lane_s = end_s + rest_s
            done(lane, task, came_s, start_s, lane_s)
            for key in gives:
                there[key] = end_s
                if key in waiting:
                    self._wake(key)

    def _wake(self, key: Hashable) -> None:
        for lane in self._waiting.pop(key):
            self._ready.append(lane) if self.cores is None else self.cores.at(self.cores.now, lane)

    def _set_off(self, first: Message) -> None:
        """Let messages travel whose members have all come, with none before them on their lines."""
        messages = [first]
        while messages:
            message = messages.pop()
            if message.end_s is not None or len(message.came) < len(message.members):
                continue
            lines = [] if message.line is None else [(lane, message.line) for lane in message.members]
            times = [*message.came.values(), *[self.there[key] for key in message.after]]
            for line in lines:
                if self._lines[line][0] is not message:
                    break
                if line in self.free_s:
                    times.append(self.free_s[line])
            else:
                self._travel(message, reduce(self.later, times), lines, messages)

    def _travel(
        self, message: Message, begin_s: Time, lines: list[tuple[int, Hashable]], next_on_lines: list[Message]
    ) -> None:
        message.begin_s, message.end_s = message.travel(begin_s)
        for line in lines:
            queue = self._lines[line]
            queue.popleft()
            self.free_s[line] = message.end_s
            if queue:
                next_on_lines.append(queue[0])
        self.there[message.key] = message.end_s
        if message.key in self._waiting:
            self._wake(message.key)
