"""Run one submission's cells and answer calls over a pipe: python -I worker.py READ WRITE (two file descriptors).

It holds no check, no solution and no expected value. The first message it gets is {hidden, kept}: where nothing but an
audit hook keeps a submission out, the folders that it must not read, and those in them that it may. Then come chapters
to begin, {begin, setup, cells}, which it answers with {at} before each cell, and calls, {call, arguments, limit}.
"""

import json
import os
import pickle
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `-I` leaves it out
import codec

FORBIDDEN = ("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system", "os.kill", "ctypes.dlopen")


class Worker:
    """The student's names, by chapter, and the two ends of the pipe."""

    def __init__(self, read: int, write: int):
        self.read, self.write = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self.codec = codec.Codec(self.ask, objects=False, reads_objects=True)
        self.names: dict[str, dict] = {}

    def send(self, message: dict) -> None:
        try:
            text = codec.line(message, codec.REPLY)
        except codec.CannotTravel as error:
            text = codec.line({"answer": None, "error": "CannotTravel", "text": str(error)})
        self.write.write(text)
        self.write.flush()

    def give_up(self, *_) -> None:
        """A call has computed for as long as it may."""
        os.write(self.write.fileno(), codec.line({"answer": None, "late": True}))
        os._exit(1)

    def leave(self) -> None:
        """What a submission forks has no say: it would answer beside the process that was asked."""
        os.close(self.read.fileno())
        os.close(self.write.fileno())

    def receive(self) -> dict:
        text = self.read.readline()
        if not text:
            os._exit(0)  # the judge is gone
        return json.loads(text)

    def begin(self, message: dict) -> dict:
        """Setup, then the student's cells; one that stops with an error is noted, and the next goes on."""
        names = self.names[message["begin"]] = {"__name__": "__main__"}
        for source in message["setup"]:
            exec(compile(source, "setup", "exec"), names)
        problems = []
        for number, source in message["cells"]:
            self.send({"at": number})
            try:
                exec(compile(source, f"cell {number}", "exec"), names)
            except BaseException as error:
                problems.append([number, type(error).__name__, str(error)[:300]])
        functions = [name for name, value in names.items() if callable(value) and isinstance(name, str)]
        return {"problems": problems, "functions": functions}

    def ask(self, number: int, arguments: tuple) -> object:
        """Call a function of the judge's."""
        self.send({"call": number, "arguments": self.codec.encode(arguments)})
        return self.answer_until("answer")

    def answer_until(self, wanted: str) -> object:
        """Answer calls until the message that is wanted arrives; for ever if it is none."""
        while True:
            message = self.receive()
            if wanted in message:
                if message.get("error"):
                    raise RuntimeError(message["error"])
                return self.codec.decode(message[wanted])
            self.send(self.begin(message) if "begin" in message else self.answer(message))

    def answer(self, message: dict) -> dict:
        """What a function of the student's gives back, or the error it stops with; and arguments that it changed."""
        arguments = self.codec.decode(message["arguments"])
        before, objects, called = self.codec.snapshot(arguments), _objects(arguments), message["call"]
        timer = signal.setitimer(signal.ITIMER_PROF, message["limit"])  # of the processor, not of a busy machine
        try:
            function = self.codec.functions[called] if isinstance(called, int) else self.names[called[0]][called[1]]
            reply = {"answer": self.codec.encode(function(*arguments))}
        except BaseException as error:
            reply = {"answer": None, "error": type(error).__name__, "text": str(error)[:500]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, *timer)
        after = self.codec.snapshot(arguments)
        reply |= {} if after == before else {"changed": after}
        return reply | {"spoiled": [n for n, held in _objects(arguments).items() if held != objects[n]]}


def _objects(arguments: list) -> dict[int, bytes]:
    """The models among the arguments as they are now: one that an answer changes is told to the judge."""
    return {n: pickle.dumps(one) for n, one in enumerate(arguments) if hasattr(one, "state_dict")}


def keep_out(folders: list[str], needed: list[str]) -> None:
    """An audit hook against reading these folders, the network and other programs: it stops slips, not an attacker."""
    hidden, kept = (tuple(os.path.realpath(one) + os.sep for one in given) for given in (folders, needed))
    kept += (os.path.realpath(os.getcwd()) + os.sep,)

    def guard(event: str, arguments: tuple) -> None:
        if event in ("open", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0])) + os.sep
            if path.startswith(hidden) and not path.startswith(kept):
                raise PermissionError("this folder may not be read while answers are graded")
        elif event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed while answers are graded")

    sys.addaudithook(guard)


def main() -> None:
    import matplotlib
    import torch

    matplotlib.use("Agg")
    torch.set_num_threads(1)
    worker = Worker(*map(int, sys.argv[1:]))
    os.register_at_fork(after_in_child=worker.leave)
    signal.signal(signal.SIGPROF, worker.give_up)
    worker.send({"ready": True})
    folders = worker.receive()
    if folders["hidden"]:
        import pdelab  # noqa: F401  the hook would take imports for reading

        keep_out(folders["hidden"], folders["kept"])
    worker.answer_until("no such message")


if __name__ == "__main__":
    main()
