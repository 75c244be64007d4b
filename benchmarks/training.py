"""One run on two threads, or two runs of one thread side by side: which trains more steps a second?

Both ways train the same two models for the same number of steps; repeats are interleaved, and the ratio is of one pair.
"""

import dataclasses
import multiprocessing
import time
from collections.abc import Iterator

import torch
from harness import Row, spread

from pdebook.evidence.experiment import Scale, Workplace
from pdebook.evidence.trained import TASKS, fit


def steps_of(name: str, steps: int, seed: int, threads: int, start, ready) -> float:
    """Seconds to train `steps` steps, data and imports not counted; both processes begin together."""
    torch.set_num_threads(threads)
    task = TASKS[name][Scale.BOOK]
    settings = dataclasses.replace(task.settings, steps=steps, evaluate_every=None, warmup=0, watch=())
    task = dataclasses.replace(task, settings=settings, options={})
    data = task.load(0)
    warm_up = dataclasses.replace(task, settings=dataclasses.replace(settings, steps=3))
    fit("transformer", warm_up, data, 99, Workplace())
    ready.put(seed)
    start.wait()
    begun = time.perf_counter()
    fit("transformer", task, data, seed, Workplace())
    return time.perf_counter() - begun


def _child(name, steps, seeds, threads, start, ready, done) -> None:
    done.put(sum(steps_of(name, steps, seed, threads, start, ready) for seed in seeds))


def seconds(name: str, steps: int, *, processes: int, threads: int) -> float:
    """Wall time of two trainings: two after another in one process, or one in each of two."""
    context = multiprocessing.get_context("spawn")
    start, ready, done = context.Event(), context.Queue(), context.Queue()
    shares = [[0, 1]] if processes == 1 else [[0], [1]]
    children = [
        context.Process(target=_child, args=(name, steps, seeds, threads, start, ready, done)) for seeds in shares
    ]
    for child in children:
        child.start()
    while ready.qsize() < len(children):
        if not all(child.is_alive() for child in children):
            raise SystemExit("a process ended before it could begin; its message stands above")
        time.sleep(0.05)
    start.set()
    times = [done.get() for _ in children]
    for child in children:
        child.join()
    return max(times)


def rows(device: str, quick: bool) -> Iterator[Row]:
    """Seconds side by side over seconds on two threads; of two processes, so on a CPU only."""
    if torch.device(device).type != "cpu":
        return
    for name in list(TASKS)[: 1 if quick else None]:
        ratios = []
        for _ in range(1 if quick else 3):
            two_threads = seconds(name, 3 if quick else 60, processes=1, threads=2)
            side_by_side = seconds(name, 3 if quick else 60, processes=2, threads=1)
            ratios.append(side_by_side / two_threads)
        yield spread(f"two trainings of {name} side by side", "one after the other on two threads", ratios)
