"""Does a trained Transformer diffuse, and does P2 eq 8 say how much?  (P2 eq 7-8)

A small Transformer is trained on digits, rows as tokens. At every layer, example and token the diffusivity
D(x) = ½ Σ_y (y − x)² (1/d) tr J(x, y) is read off Jacobians: of the feed-forward network, of attention, and of the
whole layer, which holds both and the LayerNorms. Then

- log|D| of the layer is regressed on the logarithms of the three factors of P2 eq 8, and on layer indicators alone.
  Two more regressions tell what an exponent of the trace means: one with both (do the layers merely differ?), and one
  for the D of the same layer without its feed-forward network, which the trace cannot cause;
- attention's D is compared with ½ Σ_h m₂ʰ tr(V_h)/d and with the exact formula, `attention_diffusivity`.

The control is the same model before training.
"""

import math

import torch
from torch import Tensor, nn

from pdelab.experiments.scales import Scale, Workplace, experiment
from pdelab.experiments.tasks import TASKS, build, fit
from pdelab.field import Field, Mask, positions
from pdelab.metrics.diffusivity import (
    READINGS,
    attention_variance,
    block_traces,
    diffusivity,
    largest_off_diagonal,
    moment,
    position_slope,
)
from pdelab.metrics.jacobian import jacobian
from pdelab.models import Model
from pdelab.results import Figures, Result
from pdelab.terms.interaction import Interaction
from pdelab.training import DIVERGED

PROBE = 12  # examples; each gives one D per layer and token


def attention_diffusivity(term: Interaction, u: Field, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The two parts of attention's diffusivity, each (batch, token); their sum is `diffusivity` of its Jacobian.

    values: α/d ½ Σ_h m₂ʰ tr(W_Oʰ W_Vʰ). scores: α/d ½ Σ_h (W_Kʰᵀ q_iʰ/√d_h) · W_Oʰ Cov_iʰ((y − x)², v): the part
    that comes of the scores, since a change at y also changes how much attention y gets.
    """
    size = term.width // term.heads
    q, _, v = (part.unflatten(-1, (term.heads, size)).transpose(1, 2) for part in term.qkv(u).chunk(3, dim=-1))
    key, value = (w.unflatten(0, (term.heads, size)) for w in term.qkv.weight.chunk(3)[1:])  # (head, d_h, d)
    out = term.out.weight.unflatten(1, (term.heads, size)).transpose(0, 1)  # (head, d, d_h)
    P = term.weights(u, mask)  # (batch, head, query, key)
    x = positions(u, mask)
    near = P * (x.unsqueeze(1) - x.unsqueeze(2)).square().unsqueeze(1)  # P_ij (x_j − x_i)²
    values = 0.5 * torch.einsum("bhi,hac,hca->bi", moment(P, 2, mask), out, value)
    covariance = near @ v - near.sum(-1, keepdim=True) * (P @ v)  # (batch, head, token, d_h)
    pull = torch.einsum("bhic,hca->bhia", q, key) / math.sqrt(size)  # (batch, head, token, d)
    scores = 0.5 * torch.einsum("bhia,hac,bhic->bi", pull, out, covariance)
    real = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    return term.strength * real * values / term.width, term.strength * real * scores / term.width


def layers_of(model: Model, x: Tensor) -> list[tuple[Field, Field, nn.Module, nn.Module]]:
    """(u, w, A, R) of each pre-LayerNorm layer: the state before attention and before the feed-forward network."""
    found, u = [], model.embed(x)
    for equation in model.equation.equations:
        attention, reaction = equation.terms
        w = u + attention(u)
        found.append((u, w, attention, reaction))
        u = w + reaction(w)
    return found


def measure_layer(u: Field, w: Field, attention: nn.Module, reaction: nn.Module) -> dict[str, Tensor]:
    """Jacobians of one layer, and what is read off them; all (batch, token) but `off_diagonal`, one number.

    Attention and the feed-forward network are taken as maps of what they read, LN(u); the layer as a map of u.
    """
    ffn = jacobian(reaction.term, reaction.norm(w))
    z = attention.norm(u)
    values, scores = attention_diffusivity(attention.term, z)
    maps = attention.weights(u)
    return {
        "off_diagonal": largest_off_diagonal(ffn),
        "ffn": diffusivity(ffn),
        "attention": diffusivity(jacobian(attention.term, z)),
        "layer": diffusivity(jacobian(lambda v: v + attention(v) + reaction(v + attention(v)), u)),
        "without_ffn": diffusivity(jacobian(lambda v: v + attention(v), u)),
        "values": values,
        "scores": scores,
        "trace": u.shape[-1] * block_traces(ffn).diagonal(dim1=1, dim2=2),
        **{f"variance_{name}": attention_variance(maps, name) for name in READINGS},
    }


def regress(y: Tensor, columns: list[Tensor]) -> tuple[list[float], float]:
    """Least squares of y on the columns and a constant: the coefficients without the constant's, and R²."""
    X = torch.stack([*columns, torch.ones_like(y)], dim=1)
    found = torch.linalg.lstsq(X, y.unsqueeze(1), driver="gelsd").solution
    rest = y - (X @ found).squeeze(1)
    return found[:-1, 0].tolist(), 1 - (rest.var() / y.var()).item()


def correlation(a: Tensor, b: Tensor) -> float:
    return torch.corrcoef(torch.stack([a, b]))[0, 1].item()


def same_sign(a: Tensor, b: Tensor) -> float:
    return (a.sign() == b.sign()).double().mean().item()


@torch.no_grad()
def look(model: Model, x: Tensor) -> Figures:
    """Every figure of the experiment, from one model and some examples (in double precision)."""
    model = model.double()
    found = [measure_layer(*layer) for layer in layers_of(model, x.double())]
    slope = position_slope(model.embed.places.detach()).expand_as(found[0]["layer"])

    def all_of(name: str) -> Tensor:
        return torch.cat([layer[name].flatten() for layer in found])

    D, attention, values, full = (all_of(k) for k in ("layer", "attention", "values", "scores"))
    full = full + values
    log_slope = torch.cat([slope.flatten()] * len(found)).log()
    number = torch.arange(len(found)).repeat_interleave(found[0]["layer"].numel())
    indicators = [(number == n).double() for n in range(1, len(found))]
    figures: Figures = {
        "ffn_off_diagonal": max(layer["off_diagonal"].item() for layer in found),
        "ffn_diffusivity": max(layer["ffn"].abs().max().item() for layer in found),
        "negative_share_attention": [(layer["attention"] < 0).double().mean().item() for layer in found],
        "negative_share_layer": [(layer["layer"] < 0).double().mean().item() for layer in found],
        "median_size_attention": [layer["attention"].abs().median().item() for layer in found],
        "median_size_layer": [layer["layer"].abs().median().item() for layer in found],
        "median_size_without_ffn": [layer["without_ffn"].abs().median().item() for layer in found],
        "negative_share_trace": (all_of("trace") < 0).double().mean().item(),
        "sign_agreement_trace": same_sign(all_of("trace"), D),
        "values_correlation": correlation(values, attention),
        "values_sign_agreement": same_sign(values, attention),
        "full_correlation": correlation(full, attention),
        "full_relative_error": ((full - attention).norm() / attention.norm()).item(),
        "layer_indicators_r2": regress(D.abs().log(), indicators)[1],
    }
    factors = [log_slope, all_of("trace").abs().log(), all_of("variance_moment").log()]
    within, within_r2 = regress(D.abs().log(), [*factors, *indicators])
    without, _ = regress(all_of("without_ffn").abs().log(), factors)
    figures["within_layers_r2"] = within_r2
    for k, name in enumerate(("slope", "trace", "variance")):
        figures |= {f"within_layers_exponent_{name}": within[k], f"without_ffn_exponent_{name}": without[k]}
    (alone,), alone_r2 = regress(D.abs().log(), [all_of("variance_moment").log()])
    figures |= {"moment_alone_exponent": alone, "moment_alone_r2": alone_r2}
    for reading in READINGS:
        columns = [log_slope, all_of("trace").abs().log(), all_of(f"variance_{reading}").log()]
        kept = columns[:2] if reading == "constant" else columns
        coefficients, r2 = regress(D.abs().log(), kept)
        names = ("slope", "trace", "variance")
        figures |= {f"{reading}_exponent_{name}": c for name, c in zip(names, coefficients, strict=False)}
        product = all_of("trace") * log_slope.exp() * all_of(f"variance_{reading}")
        figures |= {f"{reading}_r2": r2, f"{reading}_correlation": correlation(product, D)}
    return figures


@experiment(Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Diffusivity of a trained Transformer, layer by layer, beside P2 eq 8, our formula and the untrained model."""
    task = TASKS["images"][scale]
    data = task.load(seed)
    model, record = fit("transformer", task, data, seed, work)
    configuration = task.configuration() | {"examples": PROBE}
    common = {"experiment": "diffusivity", "configuration": configuration, "scale": scale, "seed": seed}
    if record.status == DIVERGED:
        return Result(**common, status="diverged", figures={}, controls={}, diverged={"transformer": record.step})
    probe = data.test.take(slice(0, PROBE)).x
    untrained = look(build("transformer", task, data, seed), probe)
    return Result(
        **common,
        status="finished",
        figures={"accuracy": record.evaluations[-1].accuracy, **look(model.cpu(), probe)},
        controls={f"untrained_{name}": value for name, value in untrained.items()},
    )
