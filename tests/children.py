"""What tests run in a process of its own. A child finds it by this name: `tests` may be another package's folder."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from importlib import import_module

import torch


def command(*words, **options):
    """`pdelab` with these words, begun in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "pdebook", *words], **pipes | {"env": env} | options)


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
