'''Exercises that answer: `check` gives a verdict part by part, `hint` the next of four hints.

    from parallel_lab.lab.exercises import check, hint

    check("02.1", ring_reduce_scatter)      # what passed, and the first thing that is wrong, with your line
    hint("02.1")                            # a question; then a place to look, a part of the answer, the answer
    par("09.2")                             # of a puzzle, an answer at par: after an attempt of your own

A verdict names one fault at a time. It shows what was expected once a hint was asked for. The answer that an exercise
begins with is "not tried yet" and earns nothing.

In a class
----------

A test cell ends with `check("02.1", ring_reduce_scatter).points`: nbgrader gives the points of the parts that passed.
`.assert_passed()` in its place raises AssertionError unless everything passed. A fault of the machine, such as a
missing package, raises GradingError: it is never a mark. `parallel-lab grade FOLDER` grades without nbgrader.

`save_results("ada.json", learner="Ada")` writes the last verdict on each exercise:

    {"format": "parallel_lab.checks", "version": 1, "learner": "Ada", "checks": [
        {"exercise": "03.1", "title": ..., "tried": true, "hints": 1, "attempts": 3, "points": 1, "max_points": 3,
         "parts": [{"name": "sgd", "passed": false, "points": 1, "earned": 0, "idea": "all_reduce averages",
                    "note": ...}, ...]}]}

`passed` is null for a part that was not judged. `idea` is the misconception that the answer comes from, a name of
`ideas.MISCONCEPTIONS` or an author's own; empty where none is recognised. `parallel-lab grade --json` writes one such
file per student.

What students could copy from each other is met in two ways. A function is also judged on drawn inputs (`drawn`), by
`judge_drawn`, which nbgrader's tests and `parallel-lab grade` call: a table of what `check` shows earns nothing. Where
the answer is a number or a choice, each student may have numbers of its own (`own`):

    learner("ada")                          # or PARALLEL_LAB_LEARNER=ada in the environment
    print(numbers("10.1"))                  # caps of 28, 44 and 56 results, of hers; check, hint and par go by them

The notebooks are the students' version as they are. `parallel-lab course FOLDER` makes an nbgrader course of them,
whose `generate_assignment` leaves the starts of the exercises in place (`lab/classroom/nbgrader_config.py`).

Write your own
--------------

An exercise is an `Exercise`: number, title, parts with points, four hints, a grader. Where the answer is a function to
be compared with the right one, `by_cases` makes the grader of a table: `Cases` of name, points, cases and rule. An
`Idea` is a wrong model with the answer that follows from it: a learner who hands in its numbers reads its note.
This is a whole exercise:

    from parallel_lab.lab.exercises import Cases, Exercise, Idea, add, by_cases, check, hint

    CASES = [(4, 1000), (8, 1000), (8, 24)]

    def right(ranks, size_bytes):
        return 2 * (ranks - 1) * size_bytes / ranks

    IDEAS = (
        Idea("whole arrays travel", "A ring sends chunks, each 1/ranks of the array.",
             lambda ranks, size_bytes: 2 * (ranks - 1) * size_bytes),
        Idea("half of it", "That is the reduce_scatter alone; an all_gather follows.",
             lambda ranks, size_bytes: (ranks - 1) * size_bytes / ranks),
    )

    add(Exercise(
        "my.1",
        "bytes of a ring",
        hints=("How many messages does a rank send?", "Step through the ring.", "A message is a chunk.",
               "Twice the ranks less one, times the size over the ranks."),
        **by_cases(
            right,
            Cases("bytes", 2, CASES, "bytes that one rank sends", IDEAS),
            Cases("one rank", 1, [(1, 1000)], "a rank alone sends nothing"),
        ),
        start="""
    def sent(ranks, size_bytes):
        return size_bytes

    check("my.1", sent)
    """,
    ))

`start` is the cell that learners get; handed in unchanged, it counts as not tried yet.

Other answers need a grader of their own. It is a generator that yields a `Part` per part, made by `judged(name,
function, *arguments)`. That function returns what was found, in words, or raises `Wrong(found, expected, note)`;
`Wrong(found, form="A number")` where an answer has another form. Learners' functions are called through `ask` or
`compare_calls`, which stop what does not end and name the learner's line; rank programs are run by `run_programs`.
During a check the functions of an answer are in a process of their own (`own_process.py`) and work on copies: prints
and pictures appear in the cell, but a list that one appends to in the notebook stays as it was.

With `par=` (a function that returns an answer at par, as text) and `attempt=` (the part that an own attempt passes) an
exercise is a puzzle. Compute par by an exact search in the grader, and compare scores that the grader counts itself,
never a score that came with the answer. An answer need not be a function: then the judging function looks at it, and
hands `Wrong` the note of the idea it comes from, `idea.told`. Layers of 5, 1, 1, 1 and 4 ms in two stages, to be cut so
that the slower one is as fast as can be:

    from parallel_lab.lab.exercises import Exercise, Idea, Wrong, add, judged

    LAYERS_MS = (5, 1, 1, 1, 4)
    HALF = Idea("equally many layers", "Stages of equally many layers are equal only where layers are.", 3, part="par")

    def slower_ms(cut):
        return max(sum(LAYERS_MS[:cut]), sum(LAYERS_MS[cut:]))

    PAR = min(range(1, 5), key=slower_ms)

    def legal(cut):
        if not isinstance(cut, int) or cut not in range(1, 5):
            raise Wrong(f"{cut!r:.80}", form="A number of layers, 1 to 4")
        return f"{slower_ms(cut)} ms"

    def at_par(cut):
        if slower_ms(cut) > slower_ms(PAR):
            raise Wrong(f"{slower_ms(cut)} ms", f"{slower_ms(PAR)} ms", HALF.told if cut == HALF.answer else "")
        return f"{slower_ms(cut)} ms, at par"

    def puzzle(cut):
        first = judged("legal", legal, cut)
        yield first
        if first.passed:                        # a part that is not yielded is not judged
            yield judged("par", at_par, cut)

    add(Exercise(
        "my.2", "two stages", (("legal", 1), ("par", 2)),
        ("Which stage is the slower one?", "Add up both sides.", "The first is the longest.", "Cut behind the next."),
        puzzle, par=lambda: f"cut = {PAR}", attempt="legal", start='check("my.2", 1)', ideas=(HALF,),
    ))

`probe(exercise, answers)` tests it: that the start earns nothing, right answers pass, each idea gets its own note and
no junk makes the grader fail. Exercises of the course lie in `lesson_NN.py` (`EXERCISES`), your own in any file with a
tuple `EXERCISES`, which `parallel-lab grade --exercises FILE` takes. `notebooks/templates/your_own_lesson.ipynb` is a
whole lesson to copy, with an exercise and a lab of its own.
'''

from .book import (
    Exercise,
    GradingError,
    add,
    all_exercises,
    check,
    get_exercise,
    hint,
    judge,
    judge_drawn,
    learner,
    numbers,
    par,
    puzzle_lab,
    results,
    save_results,
)
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, compare_calls, recognised, same_value
from .own_process import start_ahead
from .probing import JUNK, probe
from .running import ask, attempt, read_number, run_programs
from .verdict import Hint, Note, Par, Part, Verdict, Wrong, judged

# in a notebook
__all__ = ["add", "check", "hint", "learner", "numbers", "par", "puzzle_lab", "results", "save_results"]
# to write exercises: what they are made of, how answers are called and read, and how an exercise is tested
__all__ += ["Cases", "Exercise", "GradingError", "Hint", "Idea", "Note", "Par", "Part", "Verdict", "Wrong"]
__all__ += ["ask", "attempt", "by_cases", "compare_calls", "judged", "read_number", "recognised", "run_programs"]
__all__ += ["JUNK", "MISCONCEPTIONS", "all_exercises", "get_exercise", "judge", "judge_drawn", "probe", "same_value"]

start_ahead()
