"""Mutual information by nearest neighbours: pdelab's `ksg` beside infomeasure's, in one run.

    python benchmarks/information.py               a minute or two on a quiet machine

Both compute the same estimator on the same float32 samples with k = 3; repeats are interleaved, and the ratio is of one
pair. Memory is the most that a process of its own grew during the call, seen every millisecond (Linux).
"""

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path

import torch
from infomeasure import mutual_information

from pdelab.metrics.information import ksg
from pdelab.seeds import normal

SIZES = ((2_000, 16), (2_000, 1), (10_000, 16))


def pair(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """d independent pairs with correlation 0.5."""
    x, z = (normal(0, name, n, d, size=(n, d)).float() for name in ("x", "z"))
    return x, 0.5 * x + 0.75**0.5 * z


def ours(x: torch.Tensor, y: torch.Tensor) -> float:
    return ksg(x, y, k=3, splits=0).value  # neither measures an error


def theirs(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(mutual_information(x.numpy(), y.numpy(), approach="metric", k=3, noise_level=0))


def timed(estimate, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    begun = time.perf_counter()
    value = estimate(x, y)
    return time.perf_counter() - begun, value


def size() -> float:
    """What this process holds in memory, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_a_process(f, *arguments) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(f, arguments)


def growth(estimate, n: int, d: int) -> float:
    """The most memory that the call held beyond what was there before, in MB; NaN where there is no /proc."""
    if not Path("/proc/self/statm").exists():
        return float("nan")
    torch.set_num_threads(1)
    x, y = pair(n, d)
    estimate(*pair(200, d))  # loads and compiles
    done, seen = threading.Event(), [size()]

    def watch() -> None:
        while not done.wait(1e-3):
            seen.append(size())

    watcher = threading.Thread(target=watch)
    watcher.start()
    estimate(x, y)
    done.set()
    watcher.join()
    return max(seen) - seen[0]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    print(
        f"torch {torch.__version__}, {chosen.threads} thread(s), {chosen.repeats} interleaved repeats (1 at n = 10,000)"
    )
    for n, d in SIZES:
        x, y = pair(n, d)
        pairs = [(timed(ours, x, y), timed(theirs, x, y)) for _ in range(1 if n > 5_000 else chosen.repeats)]
        ratios = sorted(own[0] / peer[0] for own, peer in pairs)
        own, peer = (statistics.median(one[i][0] for one in pairs) for i in (0, 1))
        memory = [in_a_process(growth, estimate, n, d) for estimate in (ours, theirs)]
        print(
            f"n = {n:,}, {d} + {d} features: {own:.2f} s beside {peer:.2f} s, ratio {statistics.median(ratios):.3f} "
            f"[{ratios[0]:.3f}, {ratios[-1]:.3f}]; memory +{memory[0]:.0f} MB beside +{memory[1]:.0f} MB; "
            f"values {pairs[0][0][1]:.4f} and {pairs[0][1][1]:.4f}"
        )


if __name__ == "__main__":
    main()
