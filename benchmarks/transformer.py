"""A Transformer of six layers beside torch's own and beside TransformerLens: same weights, same results, dropout 0.

The peer trains as torch.nn.TransformerEncoder does and keeps nothing; ours keeps every state. TransformerLens 3.9.0 is
the last version with HookedTransformer; its filter of names caches what ours keeps, states and attention maps.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from harness import Row, compare, peak_memory, peer, spread, timed
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pdelab import Place, Settings, datasets, solve, train, transformer
from pdelab.metrics.similarity import fidelity
from pdelab.models import with_ends
from pdelab.seeds import normal

WIDTH, DEPTH, HEADS, HIDDEN = 128, 6, 4, 512
STEPS = 10  # from which the losses in bfloat16 and float32 are compared


def rows(device: str, quick: bool) -> Iterator[Row]:
    repeats = 2 if quick else 9
    sizes = ((8, 2, ""), (12, 2, "")) if quick else ((1000, 8, "≤ 0.93"), (64, 64, "≤ 0.85"))
    for tokens, batch, target in sizes:
        for norm in ("pre", "post"):
            own, torchs = (model.to(device) for model in pair(norm))
            u, goal = fields(tokens, batch, device)
            ours = training(own, lambda u, own=own: own.trajectory(u).states[-1], u, goal)
            theirs = training(torchs, torchs, u, goal)
            work = f"training step, {norm}-norm, N={tokens} B={batch}, all states kept"
            peer_ = "torch's TransformerEncoder, nothing kept"
            yield compare(work, peer_, ours, theirs, target=target, repeats=repeats, device=device, agree=1e-4)
            if norm == "pre":
                yield share(ours, tokens, batch, device, repeats)
    yield bfloat16(device, *(sizes[1][:2]), repeats)
    yield trained(device, 2 if quick else 5, 10 if quick else 300)

    tokens, batch = (12, 2) if quick else (256, 8)
    own, lens = (model.to(device) for model in lens_pair(tokens))
    u, _ = fields(tokens, batch, device)
    yield compare(
        f"forward, all states and attention maps, causal, N={tokens} B={batch}",
        "TransformerLens 3.9.0 run_with_cache, the same cached",
        lambda: seen(own, u),
        lambda: cached(lens, u),
        target="≤ 0.55",
        repeats=repeats,
        device=device,
        agree=1e-4,
    )
    yield from curves(device, quick)


def fields(tokens: int, batch: int, device: str) -> tuple[Tensor, Tensor]:
    u, goal = (normal(0, name, size=(batch, tokens, WIDTH)).float().to(device) for name in ("u", "goal"))
    return u, goal


def pair(norm: str) -> tuple[nn.Module, nn.Module]:
    """Our model and torch's, with one set of weights."""
    own = transformer(WIDTH, DEPTH, HEADS, HIDDEN, norm=norm)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    torchs = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
    for equation, layer in zip(own.equation.equations, torchs.layers, strict=True):
        interaction, reaction, first, second = parts(equation, norm)
        attention = layer.self_attn
        attention.in_proj_weight.data.copy_(interaction.qkv.weight)
        attention.in_proj_bias.data.copy_(interaction.qkv.bias)
        for theirs, ours in (
            (attention.out_proj, interaction.out),
            (layer.linear1, reaction.inner),
            (layer.linear2, reaction.outer),
            (layer.norm1, first),
            (layer.norm2, second),
        ):
            theirs.load_state_dict(ours.state_dict())
    return own, torchs


def parts(equation: nn.Module, norm: str) -> tuple[nn.Module, ...]:
    """Attention, feed-forward and the two norms of a layer."""
    terms = equation.terms
    if norm == "pre":
        return terms[0].term, terms[1].term, terms[0].norm, terms[1].norm
    return terms[0], terms[2], terms[1].norm, terms[3].norm


def training(model: nn.Module, call: Callable[[Tensor], Tensor], u: Tensor, goal: Tensor) -> Callable[[], Tensor]:
    """One step of AdamW on a mean square; gives the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(call(u), goal)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def share(step: Callable[[], object], tokens: int, batch: int, device: str, repeats: int) -> Row:
    """Operations of a training step in a second, over the best rate of a product of matrices in the same run.

    Forward: 2 for each weight and token, and 4 N² for each feature of attention. Backward: twice as many for the
    weights; for attention 2.5 times, as the fused kernel computes its scores again.
    """
    weights = 2 * batch * tokens * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN)
    attention = 4 * batch * tokens**2 * WIDTH
    work = DEPTH * (3 * weights + 3.5 * attention)

    n = 1024
    a, b = (normal(0, name, size=(n, n)).float().to(device) for name in "ab")
    step()
    shares = []
    for _ in range(repeats):
        best = max(10 * 2 * n**3 / timed(lambda: a @ b, device, 10) for _ in range(3))
        shares.append(work / timed(step, device) / best)
    note = "matrices of 1024²; the scores that backward computes again are counted"
    target = "" if tokens < 100 and batch < 10 else "≥ 0.62"
    name = f"share of the best matrix product's rate, training step, N={tokens} B={batch}"
    return spread(name, "physical limit", shares, target, note)


class Autocast(nn.Module):
    """A model whose products are of bfloat16 numbers; weights, sums and what it gives stay in float32."""

    def __init__(self, model: nn.Module, enabled: bool):
        super().__init__()
        self.model, self.enabled = model, enabled

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.enabled):
            return self.model(x, mask).float()


def bfloat16(device: str, tokens: int, batch: int, repeats: int) -> Row:
    """The same step under autocast; the note says what it does to the loss after a few."""
    u, goal = fields(tokens, batch, device)
    models = [Autocast(transformer(WIDTH, DEPTH, HEADS, HIDDEN), enabled).to(device) for enabled in (True, False)]
    steps = [training(model, model, u, goal) for model in models]
    losses = [[float(step()) for _ in range(STEPS)][-1] for step in steps]
    note = f"loss after {STEPS} steps {losses[0]:.5f} beside {losses[1]:.5f}"
    work = f"training step in bfloat16 (autocast), pre-norm, N={tokens} B={batch}"
    return compare(work, "the same in float32", *steps, repeats=repeats, device=device, note=note)


def trained(device: str, seeds: int, steps: int) -> Row:
    """Whole trainings on digits, and what bfloat16 does to their results; time is that of the training."""
    digits = datasets.load("digits-rows")
    x, y = digits.test.x.to(device), digits.test.y.to(device)
    settings = Settings(steps=steps, warmup=steps // 10, rate=1e-3)
    ratios, found = [], {True: [], False: []}
    for seed in range(seeds):
        seconds = {}
        for enabled in (True, False) if seed % 2 else (False, True):
            core = transformer(WIDTH, 4, HEADS, HIDDEN, seed=seed)
            model = with_ends(core, WIDTH, outputs=10, length=8, features=8, seed=seed).to(device)
            cast = Autocast(model, enabled)
            place = Place(device=device, progress=False)
            seconds[enabled] = timed(partial(train, cast, digits, settings, seed=seed, place=place), device)
            with torch.no_grad():
                right = (cast.eval()(x).argmax(dim=-1) == y).float().mean().item()
                found[enabled].append((right, fidelity(model.trajectory(x))[-1].item()))
        ratios.append(seconds[True] / seconds[False])

    def words(enabled: bool) -> str:
        accuracy, kept = (
            f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            for values in zip(*found[enabled], strict=True)
        )
        return f"accuracy {accuracy}, fidelity {kept}"

    work = f"training on digits in bfloat16 (autocast), pre-norm, {steps} steps, {seeds} seeds"
    return spread(work, "the same in float32", ratios, note=f"{words(True)} beside {words(False)}")


def lens_pair(tokens: int) -> tuple[nn.Module, nn.Module]:
    """Our causal model and a HookedTransformer, with one set of weights."""
    lens = peer("transformer_lens")
    own = transformer(WIDTH, DEPTH, HEADS, HIDDEN, causal=True)
    settings = {"n_layers": DEPTH, "d_model": WIDTH, "n_heads": HEADS, "d_head": WIDTH // HEADS, "d_mlp": HIDDEN}
    settings |= {"n_ctx": tokens, "d_vocab": 2, "act_fn": "relu", "normalization_type": "LN", "device": "cpu"}
    theirs = lens.HookedTransformer(lens.HookedTransformerConfig(**settings, seed=None))
    for equation, block in zip(own.equation.equations, theirs.blocks, strict=True):
        interaction, reaction, first, second = parts(equation, "pre")
        heads = (x.unflatten(0, (3, HEADS, -1)) for x in (interaction.qkv.weight.data, interaction.qkv.bias.data))
        weight, bias = heads
        for k, letter in enumerate("QKV"):
            getattr(block.attn, f"W_{letter}").data.copy_(weight[k].transpose(1, 2))
            getattr(block.attn, f"b_{letter}").data.copy_(bias[k])
        block.attn.W_O.data.copy_(interaction.out.weight.T.unflatten(0, (HEADS, -1)))
        block.attn.b_O.data.copy_(interaction.out.bias)
        for name, layer in (("in", reaction.inner), ("out", reaction.outer)):
            getattr(block.mlp, f"W_{name}").data.copy_(layer.weight.T)
            getattr(block.mlp, f"b_{name}").data.copy_(layer.bias)
        for norm, ours in ((block.ln1, first), (block.ln2, second)):
            norm.w.data.copy_(ours.weight)
            norm.b.data.copy_(ours.bias)
    return own, theirs


@torch.no_grad()
def seen(model: nn.Module, u: Tensor) -> list[Tensor]:
    run = model.trajectory(u, attention=True)
    return [*run.states[1:], *run.attention]


@torch.no_grad()
def cached(model: nn.Module, u: Tensor) -> list[Tensor]:
    kinds = "hook_resid_post", "attn.hook_pattern"
    _, cache = model.run_with_cache(
        u, start_at_layer=0, stop_at_layer=DEPTH, names_filter=lambda name: name.endswith(kinds)
    )
    return [cache[f"blocks.{layer}.{kind}"] for kind in kinds for layer in range(DEPTH)]


def curves(device: str, quick: bool) -> Iterator[Row]:
    """Time and memory of a training step as it grows: the last size beside the first, and all of them in the note."""
    lengths = (8, 16) if quick else (256, 512, 1024, 2048, 4096)
    depths = (2, 4) if quick else (6, 24, 96, 384)
    cases = ("N", lengths, False), ("depth", depths, False), ("depth", depths, True)
    for kind, values, recompute in cases:
        seen = []
        for value in values:
            tokens, depth = (value, 2) if kind == "N" else (64, value)
            model = transformer(WIDTH, depth, HEADS, HIDDEN).to(device)
            u, goal = fields(tokens, 1, device)
            step = training(model, partial(last, model, recompute), u, goal)
            step()
            seconds = statistics.median(timed(step, device) for _ in range(3))
            seen.append((value, seconds, peak_memory(step, device) / 2**20))
        (first, time, memory), (end, times, memories) = seen[0], seen[-1]
        curve = "; ".join(f"{kind} = {value}: {t:.3g} s, {mb:.0f} MB" for value, t, mb in seen)
        way = "gradients recomputed" if recompute else "all states kept"
        for what, ratio in (("memory", memories / max(memory, 1e-3)), ("time", times / time)):
            work = f"{what} of a training step, {kind} = {first} → {end}, {way}"
            yield spread(work, f"{kind} grew {end / first:g} times", [ratio], note=curve if what == "memory" else "")


def last(model: nn.Module, recompute: bool, u: Tensor) -> Tensor:
    """The last state: of all that are kept, or with nothing kept that can be computed again."""
    if not recompute:
        return model.trajectory(u).states[-1]
    run = {"steps": model.steps, "dt": model.dt, "integrator": model.integrator}
    return solve(model.equation, u, **run, keep=lambda u: None, recompute=True).final
