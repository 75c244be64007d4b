"""The process in which one submission runs: started, asked for values, stopped, and begun anew when it died."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grading import codec, isolation
from grading.kit import Exercise
from grading.submissions import Submission
from grading.syntax import definitions
from pdebook import check

BEGIN = 300.0  # seconds that a process may take to start, on a machine that is busy with other things
START = 90.0  # seconds that the cells of one chapter may take; a call may compute for check.LIMIT
TOTAL = 300.0  # seconds that we wait for one submission, cells and calls of all its exercises together


class Ended(Exception):
    """The worker is gone, or had to be stopped."""


class TooLong(TimeoutError):
    """A call computed for longer than check.LIMIT."""


class CannotStart(RuntimeError):
    """No worker starts on this machine: that is no student's fault, and ends the grading."""


class Worker:
    """A submission that runs in a process of its own, to call its functions by name.

    Each chapter has names of its own there, so that one chapter's setup does not change another's.
    """

    def __init__(self, hidden: Sequence[Path], left: float = TOTAL):
        self.left = float("inf")
        self.folder = tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True)
        ours, theirs = _pipes()
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder.name, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            isolation.command(hidden, *theirs),
            pass_fds=theirs,
            cwd=self.folder.name,
            env=environment | {"MPLCONFIGDIR": self.folder.name},
            preexec_fn=isolation.limit,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(errors := tempfile.TemporaryFile()),  # noqa: SIM115  the process writes to it
        )
        for end in theirs:
            os.close(end)
        self.read, self.write = ours
        self.buffer = bytearray()
        self.codec = codec.Codec(self.call, objects=True, reads_objects=False)

        try:
            self._receive(BEGIN)
        except (Ended, TimeoutError) as error:
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-500:] or str(error)
            self.close()
            raise CannotStart(f"no process for submissions can be started here ({isolation.kind()}): {said}") from error
        self.left = left  # seconds that we go on waiting for it
        self.parts: dict[str, dict] = {}  # chapter -> the problems of its cells and the functions that they define
        hook = isolation.kind() == isolation.HOOK
        folders = {"hidden": list(map(str, hidden)), "kept": list(map(str, isolation.kept()))}
        self._send(folders if hook else {"hidden": []})

    def begin(self, chapter: str, setup: Sequence[str], cells: Sequence[tuple[int, str]]) -> None:
        """Run the setup of a chapter and the student's cells."""
        since, self.at = time.monotonic(), 0  # and the cell that runs
        self._send({"begin": chapter, "setup": list(setup), "cells": list(cells)})
        while "at" in (hello := self._receive(START, since)):
            self.at = hello["at"]
        problems, functions = hello.get("problems"), hello.get("functions")
        if not (_lists(problems, 3) and isinstance(functions, list)):
            self.stop()
            raise Ended("wrote into the pipe of the grader")
        self.parts[chapter] = {"problems": problems, "functions": functions}

    def functions(self, chapter: str) -> Callable:
        """call(name, arguments) for the names of a chapter."""
        return lambda name, arguments: self.call([chapter, name], arguments)

    def call(self, function: list[str] | int, arguments: Sequence) -> object:
        """What a function of the student's gives back; its error is raised again, by its name and words.

        function: chapter and name, or the number of one that was given back.
        """
        try:
            self._send({"call": function, "arguments": self.codec.encode(list(arguments)), "limit": check.LIMIT})
            reply = self._answer(3 * check.LIMIT + 5)  # the check's own limit comes first, with better words
            if reply.get("late"):
                raise TooLong(f"took longer than {check.LIMIT:g} seconds")
        except BaseException:  # the check's own limit among them: the worker is in the middle of something
            self.stop()
            raise
        if reply.get("changed"):
            _change(list(arguments), self.codec.decode(reply["changed"]))
        for number in reply.get("spoiled", []):
            _spoil(arguments[number])
        if reply.get("error"):
            raise _error(str(reply["error"]), str(reply.get("text", "")))
        return self.codec.decode(reply["answer"])

    def _answer(self, seconds: float) -> dict:
        """The answer to a call; on the way the worker may call functions that were handed to it."""
        since = time.monotonic()
        while True:
            message = self._receive(seconds, since)
            if "answer" in message:
                return message
            try:
                function = self.codec.functions[message["call"]]
                value = function(*self.codec.decode(message["arguments"]))
                self._send({"answer": self.codec.encode(value)})
            except Exception as error:
                self._send({"answer": None, "error": f"{type(error).__name__}: {error}"})

    def _send(self, message: dict) -> None:
        left, end = memoryview(codec.line(message)), time.monotonic() + START
        try:
            while left:  # in parts: a worker that does not read must not stop us
                if not select.select([], [self.write], [], max(0.0, end - time.monotonic()))[1]:
                    raise OSError("nobody reads")
                left = left[os.write(self.write, left[:4096]) :]
        except OSError as error:
            self.stop()
            raise Ended("ended the process") from error

    def _receive(self, seconds: float, since: float | None = None) -> dict:
        """The next message, if it comes in so many seconds since then, or from now on, and before all are used up."""
        now = time.monotonic()
        end, last = (now if since is None else since) + seconds, now + self.left
        try:
            return self._message(min(end, last))
        except TimeoutError:
            limit = f"{seconds:g} seconds" if end < last else f"{TOTAL:g} seconds in all"
            raise TimeoutError(f"took longer than {limit}") from None
        finally:
            self.left = last - time.monotonic()

    def _message(self, end: float) -> dict:
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                self.stop()
                raise TimeoutError
            part = os.read(self.read, 1 << 20)
            if not part:
                self.stop()
                raise Ended("ended the process, ran out of memory, or used up the time of the processor")
            self.buffer += part
            if len(self.buffer) > codec.REPLY:  # in memory, and read as JSON, it would be far more
                self.stop()
                raise Ended(f"gave back more than {codec.REPLY >> 20} MB")
        text, _, self.buffer = self.buffer.partition(b"\n")
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.stop()
            raise Ended("wrote into the pipe of the grader")
        return message

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.stop()
        for end in (self.read, self.write):
            os.close(end)
        self.folder.cleanup()


def _lists(given: object, length: int) -> bool:
    """Whether it is a list of lists of this length."""
    return isinstance(given, list) and all(isinstance(one, list) and len(one) == length for one in given)


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """(read, write) for us and for the worker."""
    (read, their_write), (their_read, write) = os.pipe(), os.pipe()
    return (read, write), (their_read, their_write)


def _error(name: str, text: str) -> Exception:
    """An error of the worker's, by its name: the checks tell NotImplementedError from all others."""
    kind = NotImplementedError if name == "NotImplementedError" else type(name, (Exception,), {})
    return kind(text)


def _change(old: object, new: object) -> None:
    """Carry over what the function changed in place, so that a check sees it."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        for mine, theirs in zip(old, new, strict=False):
            _change(mine, theirs)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() & new.keys():
            _change(old[key], new[key])
    elif new is not None and getattr(old, "shape", None) == getattr(new, "shape", ()):
        old[...] = new


def _spoil(model) -> None:
    """An answer changed its copy of a model; what it made of it is not fetched, but a check must see that it did."""
    for weights in model.parameters():
        weights.data.add_(1)


class Running:
    """The process of one submission, begun anew when it died.

    Of a cell that does not end only its definitions are run, and if that is not enough, of all cells of the chapter.
    """

    def __init__(self, submission: Submission, hidden: Sequence[Path]):
        self.submission, self.hidden = submission, hidden
        self.process: Worker | None = None
        self.left = TOTAL
        self.failed: dict[str, Exception] = {}  # by chapter
        self.endless: set[int] = set()  # numbers of the cells of which only definitions are run
        self.late: set[str] = set()  # chapters whose cells did not end once

    @property
    def over(self) -> bool:
        """Whether the seconds of the whole submission are used up."""
        return (self.process.left if self.process else self.left) <= 0

    def notes(self, exercise: Exercise) -> list[str]:
        cut = [str(number) for number, _ in self.submission.cells_of(exercise) if number in self.endless]
        what = f"Cell {cut[0]}" if len(cut) == 1 else f"Cells {', '.join(cut)}"
        return [f"{what}: not at an end after {START:g} seconds, so definitions alone were run."] if cut else []

    def worker(self, exercise: Exercise) -> Worker:
        """A living process in which the exercise's chapter has begun."""
        if exercise.chapter in self.failed:
            raise self.failed[exercise.chapter]
        cells = self.submission.cells_of(exercise)
        numbers = {number for number, _ in cells}
        try:
            return self._begun(exercise, [(n, definitions(one) if n in self.endless else one) for n, one in cells])
        except (TimeoutError, Ended) as error:
            if isinstance(error, Ended) or self.over or numbers <= self.endless:
                self.failed[exercise.chapter] = error
                raise
            one = {number for number in numbers - self.endless if number == self.process.at}
            self.endless |= one if one and exercise.chapter not in self.late else numbers
            self.late.add(exercise.chapter)
            return self.worker(exercise)

    def _begun(self, exercise: Exercise, cells: list[tuple[int, str]]) -> Worker:
        if self.process is None or not self.process.alive:
            self.close()
            if self.over:
                raise TimeoutError(f"took longer than {TOTAL:g} seconds in all")
            try:
                self.process = Worker(self.hidden, self.left)
            except CannotStart:  # once may be a machine that was busy
                self.process = Worker(self.hidden, self.left)
        if exercise.chapter not in self.process.parts:
            self.process.begin(exercise.chapter, self._setups(exercise), cells)
        return self.process

    def _setups(self, exercise: Exercise) -> list[str]:
        """Those of the sheet up to its chapter's, as a kernel has run them when it comes there."""
        setups = {one.chapter: one.setup for one in self.submission.kit.exercises}
        chapters = list(setups)
        return [cell for one in chapters[: chapters.index(exercise.chapter) + 1] for cell in setups[one]]

    def close(self) -> None:
        if self.process is not None:
            self.left = self.process.left
            self.process.close()
            self.process = None
