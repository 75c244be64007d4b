"""What `record` and `probe` cost on a pretrained network of 135 million weights, beside its plain forward."""

import resource
import sys
import time
from collections.abc import Callable, Iterator

import torch
from harness import NotInstalled, Row, compare, spread, timed

from pdelab import pretrained, probe, record
from pdelab.datasets.cache import DataMissing


def rows(device: str, quick: bool) -> Iterator[Row]:
    try:
        model = pretrained.load("smollm2").model.to(device)
    except (DataMissing, ValueError) as error:  # the files or the packages
        raise NotInstalled(str(error)) from error
    tokens = 16 if quick else 512
    ids = torch.randint(100, 40_000, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device)

    def plain() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids).logits

    def recorded() -> torch.Tensor:
        return record(model, {"input_ids": ids}).output.logits

    known = record(model, {"input_ids": ids.flip(1)})

    def others() -> torch.Tensor:
        return known.again({"input_ids": ids}).output.logits

    def loss(out) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.logits[0, :-1], ids[0, 1:])

    size = f"135 million weights, {tokens} tokens"
    repeats = 1 if quick else 5
    options = {"repeats": repeats, "device": device, "agree": 1e-3}
    first = f"record, all stages, finding layers and symbols, {size}"
    yield compare(first, "the plain forward", recorded, plain, note="1.10 is for known layers", **options)
    again = f"record other inputs, all stages, layers known, {size}"
    yield compare(again, "the plain forward", others, plain, target="≤ 1.10", **options)
    if not quick:
        yield from probed(lambda: probe(model, {"input_ids": ids}, loss=loss, progress=False), plain, device, size)


def probed(report: Callable[[], object], plain: Callable[[], object], device: str, size: str) -> Iterator[Row]:
    """On two threads; memory is the most that the process had, with the model loaded and all that ran in it before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        begun = time.perf_counter()
        spent = timed(report, device)
        seconds = time.perf_counter() - begun
        ratios = [spent / timed(plain, device) for _ in range(3)]
    finally:
        torch.set_num_threads(threads)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS, in units of 1024 elsewhere
    gigabytes = most * (1 if sys.platform == "darwin" else 1024) / 1e9

    work, note = f"probe with four controls, {size}", f"{seconds:.0f} s on two threads, {gigabytes:.1f} GB"
    yield spread(work, "the plain forward", ratios, note=note)
    yield spread(f"{work}: seconds on two threads", "the clock", [seconds], "≤ 120")
    yield spread(f"{work}: GB of the process", "the system", [gigabytes], "≤ 4")
