"""What tests run in a process of its own, and how they wait for one.

A child finds this by its name: `tests` may be another package's folder.
"""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import cache
from importlib import import_module

import psutil
import torch

EXPERIMENT = "corners-images"  # four short trainings per seed, each with a checkpoint


def command(*words, **options):
    """`pdelab` with these words, begun in a process of its own."""
    return module("pdebook", *words, **options)


def module(*words, **options):
    """`python -m` with these words, begun in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", *words], **pipes | {"env": env} | options)


def until(condition, seconds=240):
    """Wait, for longer than any busy machine takes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_gone(process):
    """Whether no process of the session is left, orphans included."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return all(one.status() == psutil.STATUS_ZOMBIE for one in psutil.process_iter() if in_session(one, process.pid))


def in_session(one, session):
    try:
        return os.getsid(one.pid) == session
    except ProcessLookupError:
        return False


@cache
def quiet(seed):
    """Figures and controls of EXPERIMENT from a run that nothing disturbs."""
    return figures(import_module("pdebook.evidence.run").find(EXPERIMENT)("smoke", seed))


def figures(result):
    return result.figures, result.controls, result.diverged


def train_in_child(folder) -> None:
    torch.set_num_threads(1)
    import_module("library.test_training").run(folder)


def train_together(rank, size, folder) -> None:
    """One of several processes that train one model, each case of library.test_training.TOGETHER after the other."""
    torch.set_num_threads(1)
    tests = import_module("library.test_training")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    limit = timedelta(seconds=600)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, size, rank)
    for name in tests.TOGETHER:
        tests.case(name, folder)
    torch.distributed.destroy_process_group()


def killed_at_seed_0(job, line, device, progress, threads, stop):
    if job.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return import_module("pdebook.evidence.run").do(job)


def faulty_at_seed_0(job, line, device, progress, threads, stop):
    if job.seed == 0:
        raise ZeroDivisionError("a fault of the experiment")
    return import_module("pdebook.evidence.run").do(job)


def go_on(name, folder):
    return import_module("bookcode.test_resume").go_on(name, folder)
