"""Does a Transformer diffuse, and does P2 eq 8 say how much?  (P2 eq 7-8)

`position_kernel`: attention by position alone, and the exponent of |P'|² in D beside three readings of P2 eq 8.

`diffusivity`: a small Transformer is trained on digits, rows as tokens. At every layer, example and token the
diffusivity D(x) = ½ Σ_y (y − x)² (1/d) tr J(x, y) is read off Jacobians: of the feed-forward network, of attention, and
of the whole layer, which holds both and the LayerNorms. Then

- log|D| of the layer is regressed on the logarithms of the three factors of P2 eq 8, and on layer indicators alone.
  More regressions tell what an exponent of the trace means: one with both (do the layers merely differ?), one for the D
  of the same layer without its feed-forward network, which the trace cannot cause, and one for the ratio of the two;
- at the two end tokens |P'|² is a one-sided difference, longer than a central one for a table that is not smooth. So
  all regressions are made again without the end tokens (`inner_`), and without the first third of the layers, where D
  changes its sign and log|D| is a poor measure (`later_`);
- the D of the layer is compared with tr((I + J_f) D_attention)/d, J_f the block of the network at one token
  (`composed`), and attention's D with ½ Σ_h m₂ʰ tr(V_h)/d, layer by layer, and with the exact formula,
  `attention_diffusivity`.

The control is the same model before training.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from pdebook.chapters.diffusion.laws import (
    PAIRS,
    TAU,
    attention_diffusivity,
    centre_row,
    commensurate_frequencies,
    encode,
    second_moment,
    spread_frequencies,
    varying_length,
    weights,
)
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import slope
from pdebook.evidence.trained import TASKS, build, fit
from pdebook.ledger.record import Figures, Result
from pdelab.field import Field
from pdelab.formulas import centres
from pdelab.metrics.diffusivity import (
    READINGS,
    attention_variance,
    block_traces,
    diffusion_matrix,
    diffusivity,
    largest_off_diagonal,
    moment,
    position_slope,
)
from pdelab.metrics.jacobian import jacobian
from pdelab.models import Model
from pdelab.status import Status

SCALES = (1.0, 1.4, 2.0, 2.8, 4.0)  # all frequencies are multiplied by these
PROBE = 12  # examples; each gives one D per layer and token


# Attention by position


def sweep(omega: Tensor, tokens: int = 2048, scales: Sequence[float] = SCALES) -> tuple[list[float], dict]:
    """|P'|² for each scale of the frequencies, and m₂ and the variance of the weights at the token in the middle."""
    slopes, moments, variances = [], [], []
    for scale in scales:
        r, p = centre_row(scale * omega, tokens)
        slopes.append((scale * omega).square().mean().item())
        moments.append(second_moment(r, p))
        variances.append((p.square().mean() - p.mean() ** 2).item())
    return slopes, {"moment": moments, "weights": variances, "constant": [1.0] * len(slopes)}


def position_exponents(omega: Tensor, tokens: int = 2048, scales: Sequence[float] = SCALES) -> dict[str, float]:
    """The exponent of |P'|² in D = ½m₂ ("measured"), and in |P'|²σ²_att of P2 eq 8 under each reading of σ²_att."""
    slopes, factors = sweep(omega, tokens, scales)
    printed = {name: slope(slopes, np.multiply(slopes, values)) for name, values in factors.items()}
    return {"measured": slope(slopes, factors["moment"]), **printed}


def block(P: Tensor, V: Tensor, ffn=None, tau: float = TAU):
    """u ↦ w + FFN(w + P), w = u + p(P) u Vᵀ: a residual layer that attends by position; without ffn the first half."""
    p = weights(P, tau)

    def layer(u: Field) -> Field:
        w = u + p @ u @ V.T
        return w if ffn is None else w + ffn(w + P[..., : u.shape[-1]])

    return layer


def layer_diffusivity(omega: Tensor, V: Tensor, ffn=None, tokens: int = 128, tau: float = TAU) -> float:
    """D = ½ Σ_y (y − x)² (1/d) tr J(x, y) of `block` at the token in the middle, from its Jacobian."""
    u = torch.zeros(1, tokens, len(V), dtype=torch.float64)
    J = jacobian(block(encode(centres(tokens), omega), V, ffn, tau), u)
    return diffusivity(J)[0, tokens // 2].item()


@experiment("position_kernel", Scale.BOOK)
def position_kernel(scale: Scale, seed: int, work: Workplace) -> Result:
    """How diffusion by attention depends on the slope of the positions, beside three readings of P2 eq 8.

    One seed is one draw of 16 frequencies. Controls: frequencies whose kernel recurs, and a grid that is too coarse.
    """
    omega = spread_frequencies(seed)
    found = position_exponents(omega)
    V = torch.eye(2, dtype=torch.float64)
    P = encode(centres(256), omega)
    maps = weights(P).reshape(1, 1, 256, 256)
    recurring = position_exponents(commensurate_frequencies(), scales=(1, 2, 4, 8))
    return Result(
        experiment="position_kernel",
        configuration={"pairs": PAIRS, "tau": TAU, "tokens": 2048, "scales": list(SCALES)},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures={
            "exponent": found["measured"],
            **{f"printed_exponent_{name}": found[name] for name in ("constant", "moment", "weights")},
            "jacobian_over_half_m2": 2 * layer_diffusivity(omega, V, tokens=256) / moment(maps, 2)[0, 0, 128].item(),
        },
        controls={
            "recurring_kernel_exponent": recurring["measured"],
            **{f"{n}_tokens_exponent": position_exponents(omega, tokens=n)["measured"] for n in (64, 256)},
            "varying_length_ratio": varying_length(seed, 2048),
        },
    )


# A trained Transformer


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

    half = jacobian(lambda v: v + attention(v), u)
    M = diffusion_matrix(half)  # (batch, token, d, d)
    network = jacobian(reaction, w).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)  # its blocks at one token

    values, scores = attention_diffusivity(attention.term, z)
    maps = attention.weights(u)
    return {
        "off_diagonal": largest_off_diagonal(ffn),
        "ffn": diffusivity(ffn),
        "attention": diffusivity(jacobian(attention.term, z)),
        "layer": diffusivity(jacobian(lambda v: v + attention(v) + reaction(v + attention(v)), u)),
        "without_ffn": diffusivity(half),
        "composed": (M + network @ M).diagonal(dim1=-2, dim2=-1).mean(-1),
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
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()


def distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖/‖b‖."""
    return ((a - b).norm() / b.norm()).item()


def same_sign(a: Tensor, b: Tensor) -> float:
    return (a.sign() == b.sign()).double().mean().item()


def share_below_zero(a: Tensor) -> list[float]:
    """For each layer of (layer, batch, token)."""
    return (a < 0).double().mean(dim=(1, 2)).tolist()


def median_size(a: Tensor) -> list[float]:
    return a.abs().flatten(1).median(dim=1).values.tolist()


def regressions(layers: dict[str, Tensor]) -> Figures:
    """Regressions of log|D| of the layers on the logarithms of P2's factors; every entry is (layer, batch, token)."""
    log = {name: part.abs().log().flatten() for name, part in layers.items()}
    number = torch.arange(len(layers["layer"])).reshape(-1, 1, 1).expand_as(layers["layer"]).flatten()
    indicators = [(number == n).double() for n in range(1, len(layers["layer"]))]
    D, factors = log["layer"], [log["slope"], log["trace"], log["variance_moment"]]

    (alone,), alone_r2 = regress(D, factors[2:])
    within, within_r2 = regress(D, [*factors, *indicators])
    without, _ = regress(log["without_ffn"], factors)
    (network,), _ = regress(D - log["without_ffn"], [log["trace"]])

    figures: Figures = {
        "layer_indicators_r2": regress(D, indicators)[1],
        "moment_alone_exponent": alone,
        "moment_alone_r2": alone_r2,
        "within_layers_r2": within_r2,
        "network_exponent_trace": network,
    }

    for k, name in enumerate(("slope", "trace", "variance")):
        figures |= {f"within_layers_exponent_{name}": within[k], f"without_ffn_exponent_{name}": without[k]}

    for reading in READINGS:
        columns = factors[:2] if reading == "constant" else [*factors[:2], log[f"variance_{reading}"]]
        coefficients, r2 = regress(D, columns)
        names = ("slope", "trace", "variance")
        figures |= {f"{reading}_exponent_{name}": c for name, c in zip(names, coefficients, strict=False)}
        product = layers["slope"] * layers["trace"] * layers[f"variance_{reading}"]
        figures |= {f"{reading}_r2": r2, f"{reading}_correlation": correlation(product, layers["layer"])}
    return figures


def share_of_the_ends(values: Tensor) -> float:
    """The share of the variance of (token,) values that two means explain: of the two end tokens, and of the others."""
    ends, inner = values[[0, -1]], values[1:-1]
    rest = (ends - ends.mean()).square().sum() + (inner - inner.mean()).square().sum()
    return 1 - (rest / (values - values.mean()).square().sum()).item()


@torch.no_grad()
def look(model: Model, x: Tensor) -> Figures:
    """Every figure of the experiment, from one model and some examples (in double precision)."""
    model = model.double()
    found = [measure_layer(*layer) for layer in layers_of(model, x.double())]
    layers = {name: torch.stack([layer[name] for layer in found]) for name in found[0] if name != "off_diagonal"}

    steepness = position_slope(model.embed.places.detach())
    layers["slope"] = steepness.expand_as(layers["layer"])  # (layer, batch, token), as all of them
    D, attention, values, scores = (layers[k] for k in ("layer", "attention", "values", "scores"))

    inner = {name: part[..., 1:-1] for name, part in layers.items()}
    later = {name: part[len(found) // 3 :] for name, part in inner.items()}

    return {
        "ffn_off_diagonal": max(layer["off_diagonal"].item() for layer in found),
        "ffn_diffusivity": layers["ffn"].abs().max().item(),
        "negative_share_attention": share_below_zero(attention),
        "negative_share_layer": share_below_zero(D),
        **{f"median_size_{k}": median_size(layers[k]) for k in ("attention", "layer", "without_ffn")},
        "negative_share_trace": (layers["trace"] < 0).double().mean().item(),
        "sign_agreement_trace": same_sign(layers["trace"], D),
        "values_correlation": correlation(values, attention),
        "values_sign_agreement": same_sign(values, attention),
        "values_correlation_layers": [correlation(v, a) for v, a in zip(values, attention, strict=True)],
        "values_error_layers": [distance(v, a) for v, a in zip(values, attention, strict=True)],
        "full_correlation": correlation(values + scores, attention),
        "full_relative_error": distance(values + scores, attention),
        "composed_relative_error": distance(layers["composed"], D),
        "slope_variance_at_ends": share_of_the_ends(steepness.log()),
        **regressions(layers),
        **{f"inner_{name}": value for name, value in regressions(inner).items()},
        **{f"later_{name}": value for name, value in regressions(later).items()},
    }


@experiment("diffusivity", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Diffusivity of a trained Transformer, layer by layer, beside P2 eq 8, our formula and the untrained model."""
    task = TASKS["images"][scale]
    data = task.load(seed)
    model, record = fit("transformer", task, data, seed, work)
    configuration = task.configuration() | {"examples": PROBE}
    common = {"experiment": "diffusivity", "configuration": configuration, "scale": scale, "seed": seed}
    if record.status == Status.DIVERGED:
        return Result(**common, status=Status.DIVERGED, figures={}, controls={}, diverged={"transformer": record.step})

    probe = data.test.take(slice(0, PROBE)).x
    untrained = look(build("transformer", task, data, seed), probe)
    return Result(
        **common,
        status=Status.FINISHED,
        figures={"accuracy": record.evaluations[-1].accuracy, **look(model.cpu(), probe)},
        controls={f"untrained_{name}": value for name, value in untrained.items()},
    )
