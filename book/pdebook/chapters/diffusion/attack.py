"""An adversary against the laws of diffusion.  (P2 eq 7-8; P1 eq 20)

Inequalities are climbed over fields, weights, matrices, frequencies and times. Exact laws stand beside wrong ones that
look like them: one part of a formula alone, the familiar rule for the largest step, the trace in place of the
eigenvalues, and the law D ≈ Vτ/2|P'|², which is asymptotic, with its hypotheses broken one at a time.
"""

import math

import torch
from torch import Tensor

from pdebook.chapters.diffusion.laws import (
    BROKEN,
    TAU,
    attention_diffusivity,
    drawn,
    gaussian_moment,
    law_ratios,
)
from pdebook.evidence.adversary import SHRUNK, Start, Statement, ascend, attack
from pdelab.field import BOUNDARIES, laplacian
from pdelab.formulas import attention_weights, centres, norm2
from pdelab.metrics.diffusivity import diffusivity, largest_off_diagonal
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

GRIDS = (4, 5, 8, 9)
TURNS = (1.0, 2.0, 3.0)  # Z, the largest ω|r|
EXACT = 1e-10  # the relative gap of two ways to compute one number
NEAR_LAW = 0.1  # m₂|P'|²/τ within ten per cent of 1
SHARP = 1e-3  # how close to the step where growth begins a field must come


# Averages over tokens: u(y) = Σ_k c_k y^k, k ≤ 4, whose u''' is linear, so that |u'''| is largest at an end


def taylor(x, y, p, c, V) -> Tensor:
    """|Σp V u(y) − Vu(x) − V(m₁u' + ½m₂u'')| ≤ ‖V‖ ‖u'''‖_∞ m̄₃/6 for any weights p."""
    return _taylor(x.sigmoid(), y.sigmoid(), p.softmax(dim=-1), c, V)


def taylor_attention(c, A, V, *, tokens=6) -> Tensor:
    """|Σp V u(y) − Vu(x) − V(m₁u' + ½m₂u'')| ≤ ‖V‖ ‖u'''‖_∞ m̄₃/6 for the weights p of attention on the field u."""
    y = centres(tokens).expand(len(c), tokens)
    u = torch.stack([y**k for k in range(5)], dim=-1) @ c
    return _taylor(y[:, :1], y, attention_weights(u, A)[:, 0], c, V)


def _taylor(x: Tensor, y: Tensor, p: Tensor, c: Tensor, V: Tensor) -> Tensor:
    """x (batch, 1), y and p (batch, token), c (batch, 5, feature), V (batch, d, d)."""

    def at(z: Tensor, derivative: int = 0) -> Tensor:
        """The derivative of u at z: (batch, token, feature)."""
        powers = range(derivative, 5)
        terms = [math.perm(k, derivative) * z ** (k - derivative) for k in powers]
        return torch.stack(terms, dim=-1) @ c[:, derivative:]

    def mean(values: Tensor) -> Tensor:
        return (p.unsqueeze(-1) * values).sum(dim=1)

    r = (y - x).unsqueeze(-1)
    rest = mean(at(y) - at(x)) - mean(r) * at(x, 1)[:, 0] - mean(r**2) / 2 * at(x, 2)[:, 0]  # (batch, feature)
    rest = (V @ rest.unsqueeze(-1)).squeeze(-1).norm(dim=-1)

    steepest = torch.maximum(*(at(torch.full_like(x, end), 3)[:, 0].norm(dim=-1) for end in (0.0, 1.0)))
    third = mean(r.abs() ** 3).squeeze(-1)
    ratio = rest / (norm2(V) * steepest * third / 6)
    return torch.where(third > 1e-4, ratio, torch.zeros_like(ratio))  # below, rounding rules


# The explicit scheme: |u + ΔtΔu| passes |u| as soon as Δt passes 2⟨u, −Δu⟩/|Δu|²


def step(u, *, boundary) -> Tensor:
    """No field grows before Δt = 2/|λ_max|, λ_max the eigenvalue of this grid and its ends."""
    second = laplacian(u.unsqueeze(-1), boundary).squeeze(-1)
    begins = -2 * (u * second).sum(-1) / second.square().sum(-1)
    return Diffusion(1.0, boundary).largest_step(u.shape[1]) / begins


def place(seed: int, *, boundary, tokens, familiar=False) -> Tensor:
    """Some field grows as soon as Δt passes 2/|λ_max|, up to 10⁻³; familiar: as soon as it passes Δx²/2."""
    start = {"u": normal(seed, "place", boundary, tokens, size=(8, tokens))}
    reached = ascend(lambda u: step(u, boundary=boundary), start, steps=150).max()
    if familiar:
        reached = reached / (2 * tokens**2 * Diffusion(1.0, boundary).largest_step(tokens))
    return (1 - reached).abs().reshape(1) / SHARP


# Attention by position, between two Gaussians


def equal_gaussian(r: Tensor, m2: Tensor, tau: Tensor) -> Tensor:
    """The γ with G(γ) = m₂: the Gaussian on the same tokens that spreads as much. r (batch, token), m₂ and τ (batch,).

    G falls with γ if not all |r_j| are equal, so m₂ ≥ G(g) says that γ is at most g. Bisection for log γ, then one step
    of Newton's method, which carries the gradient.
    """
    with torch.no_grad():
        low, high = (torch.full_like(m2, end) for end in (-20.0, 20.0))
        for _ in range(60):
            middle = (low + high) / 2
            narrow = gaussian_moment(r, middle.exp().unsqueeze(-1), tau.unsqueeze(-1)) < m2
            low, high = torch.where(narrow, low, middle), torch.where(narrow, middle, high)

        gamma = ((low + high) / 2).exp()
        q = (-gamma.unsqueeze(-1) * r**2 / (2 * tau.unsqueeze(-1))).softmax(dim=-1)
        falls = ((q * r**4).sum(-1) - (q * r**2).sum(-1) ** 2) / (2 * tau)  # −dG/dγ
    return gamma + (gaussian_moment(r, gamma.unsqueeze(-1), tau.unsqueeze(-1)) - m2) / falls


def gaussian_low(omega, share, width, r, *, Z) -> Tensor:
    """m₂ ≥ G(g), g = |P'|² = Σa²ω²: as a ratio of constants in exponents, γ ≤ g where G(γ) = m₂."""
    g, gamma = _exponents(omega, share, width, r, Z, narrow=1.0)
    return gamma / g


def gaussian_high(omega, share, width, r, *, Z) -> Tensor:
    """m₂ ≤ G(g sin Z/Z) where Z = max ω|r| < π: as a ratio, g sin Z/Z ≤ γ where G(γ) = m₂."""
    sinc = math.sin(Z) / Z
    g, gamma = _exponents(omega, share, width, r, Z, narrow=sinc)
    return g * sinc / gamma


def _exponents(omega, share, width, r, Z, narrow) -> tuple[Tensor, Tensor]:
    """g and γ. The moments themselves are equal, whatever the weights, where all |r_j| are.

    τ is chosen so that the width of the Gaussian in r² is 1/20 to 1 of the range of r²: no token has all the weight,
    and the weights are not all equal. The tokens stay where they are.
    """
    r = r.detach()
    omega, share = omega.sigmoid(), share.softmax(dim=-1)
    omega = Z * omega / omega.amax(dim=-1, keepdim=True)
    g = (share * omega.square()).sum(dim=-1)

    reach = (r**2).amax(dim=-1) - (r**2).amin(dim=-1)
    tau = g * narrow * reach * (0.05 + 0.95 * width.sigmoid())

    waves = torch.cos(r.unsqueeze(-1) * omega.unsqueeze(1))  # (batch, token, pair)
    p = ((waves @ share.unsqueeze(-1)).squeeze(-1) / tau.unsqueeze(-1)).softmax(dim=-1)
    return g, equal_gaussian(r, (p * r**2).sum(-1), tau)


def tokens_from(inner: float):
    """A `start` with the tokens on either side at distances from `inner` to 1, the ends of that range among them."""

    def start(seed: int, *, r: Tensor, **others: Tensor) -> Start:
        distance = inner + (1 - inner) * torch.erf(r.abs() / math.sqrt(2))  # |N(0, 1)| made uniform
        distance[:, 0], distance[:, 1] = inner, 1.0
        return others | {"r": distance * r.sign()}

    return start


# Stacked averages against heat, on a ring of length 1: the wave (cos 2πx, sin 2πx) has sup|u^(k)| = (2π)^k

REACH = 10  # tokens to either side that a kernel sees
WINDOW = torch.arange(-REACH, REACH + 1)
RING = 128
SHAPES = (  # kernels to start from, offset in tokens: weight; and log 2D/s², matched or nearly no heat
    ({1: 1.0}, 0.0),  # a shift: the drift
    ({1: 0.5, -1: 0.5}, -30.0),  # two neighbours, and no heat: the spread
    ({9: 0.1, -1: 0.9}, 0.0),  # skew, mean 0, heat of the same spread: the third moment
    ({3: 0.97, 2: 0.01, 4: 0.01, 1: 0.01}, 0.0),  # in `heat_even`: nearly two points, and not their mirror image
    ({}, 0.0),  # rows of any kind, each its own
)


def average(p: Tensor, u: Tensor) -> Tensor:
    """Σ_j p_ij u_j on the ring: p (batch, token, offset), u (batch, token, feature)."""
    n = u.shape[1]
    seen = (torch.arange(n).unsqueeze(1) + WINDOW) % n
    return (p.unsqueeze(-1) * u[:, seen]).sum(dim=2)


def heat_error(p: Tensor, D: Tensor) -> Tensor:
    """sup|K_n…K_1u₀ − e^{nD∂²}u₀| for the wave: p (batch, layer, token, offset), D (batch,)."""
    layers, n = p.shape[1:3]
    angle = 2 * math.pi * torch.arange(n, dtype=p.dtype) / n
    wave = torch.stack([angle.cos(), angle.sin()], dim=-1).expand(len(p), n, 2)

    u = wave
    for layer in range(layers):
        u = average(p[:, layer], u)
    left = torch.exp(-D * layers * (2 * math.pi) ** 2).view(-1, 1, 1)
    return (u - left * wave).norm(dim=-1).amax(dim=-1)


def heat(logits, warmth, *, drift=1.0, spread=1.0, third=1.0) -> Tensor:
    """|K_n…K_1u − e^{nD∂²}u| ≤ Σ(sup|m|·M₁ + ½sup|s² − 2D|·M₂ + sup c̄₃·M₃/6), rows of any kind in every layer."""
    p, r = logits.softmax(dim=-1), WINDOW / logits.shape[2]
    mean = (p * r).sum(-1)
    away = r - mean.unsqueeze(-1)
    square, cube = ((p * away.abs() ** k).sum(-1) for k in (2, 3))  # (batch, layer, token)
    D = square.mean(dim=(1, 2)) / 2 * warmth.exp()

    def sup(x: Tensor) -> Tensor:
        return x.abs().amax(dim=-1).sum(dim=-1)

    k = 2 * math.pi
    bound = drift * k * sup(mean) + spread * k**2 / 2 * sup(square - 2 * D.view(-1, 1, 1))
    return heat_error(p, D) / (bound + third * k**3 / 6 * sup(cube))


def heat_even(logits, *, skew=0.0, fourth=1.0, square=1.0) -> Tensor:
    """|K_n…K_1u − e^{nD∂²}u| ≤ Σ sup(m₄ + 4D²)·M₄/24 for rows with m₁ = m₃ = 0 and m₂ = 2D.

    skew: 0 for rows that are their own mirror image, up to 1 for rows as far from it as their even part allows.
    """
    far = logits[..., REACH + 1 :].softmax(dim=-1)  # the weight of ±1, ±2, … together
    r = WINDOW[REACH + 1 :] / logits.shape[2]
    second = (far * r**2).sum(-1)
    D = second.amin(dim=(1, 2)) / 2
    share = 2 * D.view(-1, 1, 1) / second  # the rest stays where it is, so that every row has m₂ = 2D

    sides = share.unsqueeze(-1) * far / 2
    odd = skew * leaning(logits[..., :REACH], sides)
    p = torch.cat([(sides - odd).flip(-1), 1 - share.unsqueeze(-1), sides + odd], dim=-1)
    most = (share * (far * r**4).sum(-1)).amax(dim=-1).sum(dim=-1)
    layers = logits.shape[1]
    return heat_error(p, D) / ((2 * math.pi) ** 4 / 24 * (fourth * most + square * 4 * layers * D**2))


def leaning(raw: Tensor, sides: Tensor) -> Tensor:
    """An odd part a of a row, on the offsets r > 0: Σ r a = Σ r³ a = 0, as large as sides ± a ≥ 0 allows.

    raw chooses it: a is `sides` times what of raw is left across r and r³, with the weights `sides`.
    """
    r = torch.arange(1, REACH + 1, dtype=raw.dtype) / REACH
    powers = torch.stack([r, r**3])  # (power, offset)
    gram = torch.einsum("...j,kj,lj->...kl", sides, powers, powers) + 1e-16 * torch.eye(2, dtype=r.dtype)
    along = torch.linalg.solve(gram, torch.einsum("...j,kj->...k", sides * raw, powers).unsqueeze(-1)).squeeze(-1)
    across = raw - along @ powers
    return sides * across / across.abs().amax(dim=-1, keepdim=True)


def shaped(seed: int, *, logits: Tensor, **others: Tensor) -> Start:
    """A `start` at each of SHAPES in turn."""
    for number, (weights, warmth) in enumerate(SHAPES):
        if weights:
            shape = torch.full((len(WINDOW),), -30.0, dtype=logits.dtype)
            for offset, weight in weights.items():
                shape[REACH + offset] = math.log(weight)
            logits[number :: len(SHAPES)] = shape
        if "warmth" in others:
            others["warmth"][number :: len(SHAPES)] = warmth
    return others | {"logits": logits}


def zero_bias(x, logits, *, half=1.0) -> Tensor:
    """s²W₁(X, X*) ≤ ½E|X|³ for a centred X and its zero-bias transform X*, whose density is E[X 1(X > x)]/s²."""
    p = logits.softmax(dim=-1)
    x = x - (p * x).sum(dim=-1, keepdim=True)
    x, order = x.sort(dim=-1)
    p = p.gather(-1, order)

    square = (p * x**2).sum(dim=-1, keepdim=True)
    width = x.diff(dim=-1)
    density = -(p * x).cumsum(dim=-1)[:, :-1]  # between two atoms both distributions are straight lines
    below = torch.cat([torch.zeros_like(square), (density * width).cumsum(dim=-1)], dim=-1)
    first, last = (square * p.cumsum(dim=-1)[:, :-1] - part for part in (below[:, :-1], below[:, 1:]))

    same = first * last >= 0
    triangles = (first**2 + last**2) / torch.where(same, torch.ones_like(first), (first - last).abs())
    distance = torch.where(same, (first + last).abs(), triangles) * width / 2
    return distance.sum(dim=-1) / (half * 0.5 * (p * x.abs() ** 3).sum(dim=-1))


# Which way is forward


def backward(D, s, *, factor=1.0, rate=1.0) -> Tensor:
    """‖e^{−sD}‖ ≥ e^{s|Re λ|} for an eigenvalue λ of D with Re λ < 0, and s > 0."""
    lowest, s = torch.linalg.eigvals(D).real.amin(dim=-1), s.squeeze(-1).exp()
    grown = norm2(torch.linalg.matrix_exp(-s.view(-1, 1, 1) * D))
    return torch.where(lowest < 0, torch.exp(-rate * lowest * s) / (factor * grown), torch.zeros_like(s))


def forward(seed: int, *, batch=256, by="eigenvalues") -> Tensor:
    """e^{−sD} dies out exactly if all eigenvalues of D have Re λ > 0: 2 where a long time says otherwise.

    by: the wrong laws ask for a positive trace, or for a positive symmetric part.
    """
    D = normal(seed, "forward", size=(batch, 3, 3))
    lowest = torch.linalg.eigvals(D).real.amin(dim=-1)
    judged = {
        "eigenvalues": lowest > 0,
        "trace": D.diagonal(dim1=1, dim2=2).sum(-1) > 0,
        "symmetric part": torch.linalg.eigvalsh(D + D.mT)[:, 0] > 0,
    }
    late = 50 / lowest.abs()  # e^{±50} is beyond what a random matrix gains or loses on the way
    dies_out = norm2(torch.linalg.matrix_exp(-late.view(-1, 1, 1) * D)) < 1
    return 2.0 * (dies_out != judged[by])


# Exact laws


def formula(seed: int, *, draws=8, batch=4, alone=False) -> Tensor:
    """The diffusivity of attention is that of the values plus that of the scores; alone: of the values only."""
    found = []
    for draw in range(draws):
        term = drawn(lambda k=draw: Interaction(6, 1 + k % 3, causal=k % 2 == 1), 1000 * seed + draw)
        u = 2 * normal(seed, "formula", draw, size=(batch, 7, 6))
        measured, (values, scores) = diffusivity(jacobian(term, u)), attention_diffusivity(term, u)
        law = values if alone else values + scores
        found.append((law - measured).norm() / measured.norm() / EXACT)
    return torch.stack(found)


def locality(seed: int, *, draws=8, attention=False) -> Tensor:
    """u ↦ FFN(u + P) has no block between two tokens, whatever the weights; attention has."""
    found = []
    for draw in range(draws):
        kind, size = ("relu", "gelu", "tanh")[draw % 3], 10 ** (draw % 3)
        network = drawn(lambda k=kind: Reaction(6, 24, activation=k), 1000 * seed + draw)
        term = drawn(lambda: Interaction(6, 2), 1000 * seed + draw) if attention else network
        u, P = (size * normal(seed, "local", k, draw, size=(1, 8, 6)) for k in "uP")
        found.append(largest_off_diagonal(jacobian(lambda v, f=term, P=P: f(v + P), u)) / EXACT)
    return torch.stack(found)


def law(seed: int, *, kind="none") -> Tensor:
    """m₂ = τ/|P'|² up to ten per cent: one peak, a fine grid, a narrow window, |P| constant, far from the ends."""
    return (law_ratios(seed, kind) - 1).abs() / NEAR_LAW


WAVES = {"omega": "m", "share": "m", "width": "", "r": "n"}
KERNEL = {"vary": WAVES, "sizes": [{"m": 3, "n": 7}], "over": {"Z": TURNS}, "batch": 22, "steps": 150}

STACKS = [{"layers": layers, "n": RING, "w": len(WINDOW)} for layers in (1, 3)]

run = attack(
    "attack_diffusion",
    {
        "taylor": Statement(
            taylor,
            {"x": "one", "y": "n", "p": "n", "c": "k d", "V": "d d"},
            [{"one": 1, "n": 6, "k": 5, "d": 2}],
            batch=64,
            steps=150,
        ),
        "taylor_attention": Statement(
            taylor_attention, {"c": "k d", "A": "d d", "V": "d d"}, [{"k": 5, "d": 2}], batch=64, steps=150
        ),
        "step": Statement(step, {"u": "n"}, [{"n": n} for n in GRIDS], {"boundary": BOUNDARIES}, batch=8, steps=200),
        "place": Statement(place, over={"boundary": BOUNDARIES, "tokens": GRIDS}, wrong={"Δx²/2": {"familiar": True}}),
        "gaussian_low": Statement(gaussian_low, **KERNEL, start=tokens_from(0.1)),
        "gaussian_high": Statement(gaussian_high, **KERNEL, start=tokens_from(0.998)),  # where the bound is sharp
        "gaussian_high_spread": Statement(gaussian_high, **KERNEL, start=tokens_from(0.1)),
        "heat": Statement(
            heat,
            {"logits": "layers n w", "warmth": ""},
            STACKS,
            start=shaped,
            shrink=("drift", "spread", "third"),
            each=True,
            batch=10,
            steps=12,
        ),
        "heat_even": Statement(
            heat_even,
            {"logits": "layers n w"},
            STACKS,
            over={"skew": (0.0, 1.0)},
            start=shaped,
            shrink=("fourth", "square"),
            each=True,
            batch=10,
            steps=12,
        ),
        "zero_bias": Statement(
            zero_bias, {"x": "n", "logits": "n"}, [{"n": 2}, {"n": 5}], shrink=("half",), lemma=True, each=True
        ),
        "backward": Statement(
            backward,
            {"D": "d d", "s": "one"},
            [{"d": 3, "one": 1}],
            wrong={"|Re λ| larger": {"rate": 1 / SHRUNK}},
            shrink=("factor",),
            batch=64,
            rate=0.02,
        ),
        "forward": Statement(forward, wrong={by: {"by": by} for by in ("trace", "symmetric part")}),
        "formula": Statement(formula, wrong={"values alone": {"alone": True}}),
        "locality": Statement(locality, wrong={"attention": {"attention": True}}),
        "law": Statement(law, wrong={kind: {"kind": kind} for kind in BROKEN}),
    },
    grids=list(GRIDS),
    near_law=NEAR_LAW,
    tau=TAU,
)
