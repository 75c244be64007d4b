"""How long `probe` takes and how much memory: SmolLM2, 135 million weights, on 512 tokens, with all four controls.

Beside it, in the same run, one plain forward pass: the ratio says what the report costs, whatever the machine.
    .venv/bin/python benchmarks/probe.py [TOKENS] [THREADS]
"""

import resource
import sys
import time

import torch

from pdelab import pretrained, probe
from pdelab.probing import CONTROLS


def main(tokens: int = 512, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    network = pretrained.load("smollm2")
    ids = torch.randint(100, 40_000, (1, tokens), generator=torch.Generator().manual_seed(0))

    def loss(out) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.logits[0, :-1], ids[0, 1:])

    with torch.no_grad():
        network.model(input_ids=ids)
        started = time.perf_counter()
        network.model(input_ids=ids)
        forward = time.perf_counter() - started

    started = time.perf_counter()
    probe(network.model, {"input_ids": ids}, loss=loss, progress=False)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # on Linux in KiB
    print(f"{tokens} tokens, {threads} threads, {len(CONTROLS)} controls")
    print(f"forward pass {forward:.2f} s; probe {seconds:.0f} s, {seconds / forward:.0f} forward passes")
    print(f"largest memory of the process, weights included: {peak:.1f} GiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
