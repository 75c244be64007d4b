"""What `record` and `probe` cost on a pretrained network of 135 million weights, beside its plain forward."""

from collections.abc import Iterator

import torch
from harness import NotInstalled, Row, compare, spread, timed

from pdelab import pretrained, probe, record
from pdelab.datasets.cache import DataMissing


def rows(device: str, quick: bool) -> Iterator[Row]:
    try:
        model = pretrained.load("smollm2").model.to(device)
    except (DataMissing, ValueError) as error:  # the files or the packages
        raise NotInstalled(str(error)) from error
    tokens = 16 if quick else 256
    ids = torch.randint(100, 40_000, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device)

    def plain() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids).logits

    def recorded() -> torch.Tensor:
        return record(model, {"input_ids": ids}).output.logits

    def loss(out) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.logits[0, :-1], ids[0, 1:])

    size = f"135 million weights, {tokens} tokens"
    repeats = 1 if quick else 5
    options = {"repeats": repeats, "device": device, "agree": 1e-3}
    yield compare(f"record, all stages, {size}", "the plain forward", recorded, plain, target="≤1.10", **options)
    if not quick:
        report = timed(lambda: probe(model, {"input_ids": ids}, loss=loss, progress=False), device)
        ratios = [report / timed(plain, device) for _ in range(3)]
        yield spread(f"probe with four controls, {size}", "the plain forward", ratios)
