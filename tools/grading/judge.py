"""Judge the submissions of an assignment: an outcome for each exercise, whatever a submission does."""

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grading import checking, isolation, process
from grading.kit import Exercise, Kit
from grading.process import CannotStart, Ended, Running
from grading.submissions import Submission


@dataclass
class Outcome:
    """What came of one exercise: points, the words for the student, flags for a human, and seconds."""

    label: str
    points: float
    words: str
    flags: list[str] = field(default_factory=list)
    answer: list[tuple[str, str]] = field(default_factory=list)  # (kind, content) of what a person may read
    seconds: float = 0.0


Class = Mapping[str, Sequence[Outcome]]  # student -> outcomes in the order of the kit


class Judge:
    """Judges the submissions of one assignment. secret: the course's own, from which further inputs are drawn."""

    def __init__(self, kit: Kit, secret: str, hidden: Sequence[Path] = ()):
        self.kit, self.secret, self.hidden = kit, secret, isolation.hidden(*hidden)

    def outcomes(self, submission: Submission) -> list[Outcome]:
        """One outcome per exercise, whatever the submission does."""
        running, found = Running(submission, self.hidden), []
        try:
            for exercise in self.kit.exercises:
                started = time.monotonic()
                try:
                    outcome = self._outcome(exercise, submission, running)
                    outcome.answer = submission.answer(exercise)
                except CannotStart:
                    raise
                except Exception as error:  # whatever one submission does, the next is graded
                    outcome = _stopped(exercise, error)
                outcome.seconds = round(time.monotonic() - started, 1)
                found.append(outcome)
            for exercise, outcome in zip(self.kit.exercises, found, strict=True):  # last: no error tells what was drawn
                if outcome.points and exercise.inputs:
                    self._compare(exercise, submission, running, outcome)
                if running.over and exercise.coded and not outcome.points:
                    outcome.flags.append(f"the whole submission took longer than {process.TOTAL:g} seconds")
        finally:
            running.close()
        return found

    def _outcome(self, exercise: Exercise, submission: Submission, running: Running) -> Outcome:
        if submission.fault:
            return Outcome(exercise.label, 0, submission.fault)
        if not exercise.coded:
            answer = submission.answer(exercise)
            gone = [] if answer or submission.asked(exercise) else ["its question is gone: look into the notebook"]
            said = "Your answer is read by a person." if answer or gone else "There is no answer here."
            return Outcome(exercise.label, 0, said, gone)

        flags = submission.flags(exercise)
        try:
            worker = running.worker(exercise)
            part = worker.parts[exercise.chapter]
            problems = [f"Cell {number} stopped with {kind}: {text}" for number, kind, text in part["problems"]]
            cut = running.notes(exercise)
            flags, notes = [*flags, *cut], [*submission.notes, *cut, *problems]
            missing = [name for name in exercise.names if name not in part["functions"]]
            if missing:
                return Outcome(exercise.label, 0, _missing(missing[0], submission, notes), flags)
            passed, words = checking.checked(exercise, worker)
        except (TimeoutError, Ended) as error:
            return Outcome(exercise.label, 0, f"Your cells {error}.", flags)
        if twice := [name for name in exercise.names if submission.times(name) > 1]:
            notes.append(f"{twice[0]} is defined {submission.times(twice[0])} times; the last one counts.")
        return Outcome(exercise.label, exercise.points * passed, " ".join([words, *notes]), flags)

    def _compare(self, exercise: Exercise, submission: Submission, running: Running, outcome: Outcome) -> None:
        """Take the points of an answer that differs from the solution on drawn inputs."""
        started = time.monotonic()
        try:
            differs = checking.compared(exercise, running.worker(exercise), self.secret + submission.digest)
        except (TimeoutError, Ended) as error:
            differs = f"On other inputs, your cells {error}."
        except CannotStart:
            raise
        except Exception as error:
            stopped = _stopped(exercise, error)
            differs, outcome.flags = stopped.words, [*outcome.flags, *stopped.flags]
        if differs:
            outcome.points, outcome.words = 0, f"{outcome.words} {differs}"
        outcome.seconds = round(outcome.seconds + time.monotonic() - started, 1)


def _stopped(exercise: Exercise, error: Exception) -> Outcome:
    flag = f"the grader stopped with {type(error).__name__}: {error}"
    return Outcome(exercise.label, 0, "This answer is looked at by a person.", [flag])


def _missing(name: str, submission: Submission, notes: list[str]) -> str:
    near = difflib.get_close_matches(name, submission.defined, 1, 0.6)
    meant = f" Did you mean {near[0]}?" if near else ""
    return " ".join([f"There is no function {name}.{meant}", *notes])
