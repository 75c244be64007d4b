"""An adversary against what the book proves of the feed-forward term.  (P2 eq 6; P1 eq 12-13)

Inequalities (constants, separation, Euler steps, growth, the spread that g(x, t) leaves, kinks): the ratio of what
happens to what is allowed, by random search and gradient ascent over tokens and weights together; above 1 is a
counterexample, and the bound shrunk to 90 % must fall. Every ratio is of what the weights add to the linear −κu: a
network that is zero attains each bound, so a plain ratio would be 1 there without a search. Exact laws (locality, the
Jacobian, tokens near agreement): the relative gap, which must stay at rounding; the control is a wrong law that looks
like the right one.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import jvp

from pdebook.chapters.reaction.reactions import clock_error, kink_error, merging_law, spread, traces, tug_of_war, well
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.formulas import attention, norm2
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.seeds import derive, normal, stream
from pdelab.terms.reaction import ACTIVATIONS, SLOPES

PHI = {name: kind() for name, kind in ACTIVATIONS.items()}
SMOOTH = ("gelu", "tanh")
EXACT = 1e-9  # the relative gap of two ways to compute one number, with room for a badly scaled start
FLOW = 1.0  # the time of a flow, by RK4 in STEPS steps
STEPS = 24

Score = Callable[..., Tensor]  # of z, W₁, b₁, W₂, activation and κ: (batch,)


def network(z: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, activation: str, leak: float = 0.0) -> Tensor:
    """W₂ φ(W₁ z_i + b₁) − κ z_i in a batch: z (…, token, d), W₁ (…, hidden, d), b₁ (…, hidden), W₂ (…, d, hidden)."""
    hidden = PHI[activation](z @ W1.transpose(-1, -2) + b1.unsqueeze(-2))
    return hidden @ W2.transpose(-1, -2) - leak * z


def omega(W1: Tensor, W2: Tensor) -> Tensor:
    """ω = ‖W₂‖‖W₁‖."""
    return norm2(W1) * norm2(W2)


def rates(W1: Tensor, W2: Tensor, activation: str, leak: float) -> tuple[Tensor, Tensor, Tensor]:
    """λ₋, λ and K of the network, for all pairs of states: `Reaction.constants` in a batch."""
    least, most = SLOPES[activation]
    middle, radius = (most + least) / 2, (most - least) / 2
    product, scale = W2 @ W1, omega(W1, W2)
    growth_rates = torch.linalg.eigvalsh((product + product.transpose(-1, -2)) / 2)
    return (
        middle * growth_rates[..., 0] - radius * scale - leak,
        middle * growth_rates[..., -1] + radius * scale - leak,
        max(abs(least), abs(most)) * scale + leak,
    )


def starts(seed: int, *names: object, batch: int, tokens: int, width: int, hidden: int) -> tuple[Tensor, ...]:
    """z, W₁, b₁, W₂ for a batch of attempts, with weights of size about 1 together."""
    u = normal(seed, *names, "z", size=(batch, tokens, width))
    W1 = normal(seed, *names, "W1", size=(batch, hidden, width)) / math.sqrt(hidden)
    b1 = normal(seed, *names, "b1", size=(batch, hidden))
    W2 = normal(seed, *names, "W2", size=(batch, width, hidden)) / math.sqrt(hidden)
    return u, W1, b1, W2


def flow(rate, u: Tensor, leak: float = 0.0, T: float = FLOW, steps: int = STEPS) -> Tensor:
    """u(T) of u' = rate(u) − κu by RK4 for w = e^{κt}u, w' = e^{κt} rate(e^{−κt}w): no error where the rate is 0."""
    dt = T / steps

    def grown(w: Tensor, t: float) -> Tensor:
        return math.exp(leak * t) * rate(math.exp(-leak * t) * w)

    for n in range(steps):
        t = n * dt
        k1 = grown(u, t)
        k2 = grown(u + dt / 2 * k1, t + dt / 2)
        k3 = grown(u + dt / 2 * k2, t + dt / 2)
        u = u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + grown(u + dt * k3, t + dt))
    return math.exp(-leak * T) * u


SIZES = ((1, 1), (2, 2), (3, 6))


def over_sizes(
    seed: int,
    name: str,
    score: Score,
    activations: Sequence[str],
    batch: int,
    steps: int,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Tensor:
    """The worst ratio of each start: for every activation, with and without −u, and for every (width, hidden)."""
    found = []
    for activation in activations:
        for leak in (0.0, 1.0):
            for width, hidden in sizes:
                names = (name, activation, leak, width)
                begin = starts(seed, *names, batch=batch, tokens=2, width=width, hidden=hidden)
                found.append(ascend(lambda *x, a=activation, k=leak: score(*x, a, k), *begin, steps=steps))
    return torch.cat(found)


def secants(z: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, activation: str, leak: float) -> tuple[Tensor, Tensor]:
    """|ΔR|/|Δz| and ⟨Δz, ΔR⟩/|Δz|² for the two tokens of z: (batch,) each."""
    R = network(z, W1, b1, W2, activation, leak)
    gap, change = z[:, 0] - z[:, 1], R[:, 0] - R[:, 1]
    return change.norm(dim=-1) / gap.norm(dim=-1), (gap * change).sum(dim=-1) / gap.square().sum(dim=-1)


def lipschitz_ratio(z, W1, b1, W2, activation, leak) -> Tensor:
    """(|R(z) − R(w)|/|z − w| − κ)/(K − κ): at most 1 exactly if |R(z) − R(w)| ≤ K|z − w|."""
    K = rates(W1, W2, activation, leak)[2]
    return (secants(z, W1, b1, W2, activation, leak)[0] - leak) / (K - leak)


def upper_ratio(z, W1, b1, W2, activation, leak) -> Tensor:
    """1 + (s − λ)/‖W₂‖‖W₁‖, s = ⟨z − w, R(z) − R(w)⟩/|z − w|²: at most 1 exactly if s ≤ λ, also where λ is 0."""
    upper = rates(W1, W2, activation, leak)[1]
    return 1 + (secants(z, W1, b1, W2, activation, leak)[1] - upper) / omega(W1, W2)


def lower_ratio(z, W1, b1, W2, activation, leak) -> Tensor:
    """1 + (λ₋ − s)/‖W₂‖‖W₁‖: at most 1 exactly if s ≥ λ₋."""
    lower = rates(W1, W2, activation, leak)[0]
    return 1 + (lower - secants(z, W1, b1, W2, activation, leak)[1]) / omega(W1, W2)


def separation_ratio(z, W1, b1, W2, activation, leak) -> Tensor:
    """1 + max(s − λ, λ₋ − s)/‖W₂‖‖W₁‖, s = log(|v(T)|/|v(0)|)/T the mean rate of the difference v of two tokens."""
    lower, upper, _ = rates(W1, W2, activation, leak)
    end = flow(lambda u: network(u, W1, b1, W2, activation), z, leak)
    grown = (end[:, 0] - end[:, 1]).norm(dim=-1) / (z[:, 0] - z[:, 1]).norm(dim=-1)
    rate = grown.log() / FLOW
    return 1 + torch.maximum(rate - upper, lower - rate) / omega(W1, W2)


def step_ratio(z, W1, b1, W2, activation, leak, dt: float = 0.5) -> Tensor:
    """1 + (λ₋ − s)/‖W₂‖‖W₁‖, s = (|v⁺|/|v| − 1)/Δt for one Euler step, v the difference of two tokens."""
    lower = rates(W1, W2, activation, leak)[0]
    after = z + dt * network(z, W1, b1, W2, activation, leak)
    kept = (after[:, 0] - after[:, 1]).norm(dim=-1) / (z[:, 0] - z[:, 1]).norm(dim=-1)
    return 1 + (lower - (kept - 1) / dt) / omega(W1, W2)


def growth(rate: Tensor, T: float) -> Tensor:
    """(e^{λT} − 1)/λ, and T at λ = 0."""
    small = rate.abs() < 1e-8
    safe = torch.where(small, torch.ones_like(rate), rate)
    return torch.where(small, torch.full_like(rate, T), torch.expm1(safe * T) / safe)


def growth_ratio(z, W1, b1, W2, activation, leak) -> Tensor:
    """max_i (|u_i(T)| − e^{−κT}|u_i(0)|) / (e^{λT}|u_i(0)| + |R(0)|(e^{λT} − 1)/λ − e^{−κT}|u_i(0)|)."""
    upper = rates(W1, W2, activation, leak)[1].unsqueeze(-1)
    end = flow(lambda u: network(u, W1, b1, W2, activation), z, leak)
    push = network(torch.zeros_like(z[:, :1]), W1, b1, W2, activation, leak).norm(dim=-1)
    allowed = torch.exp(upper * FLOW) * z.norm(dim=-1) + push * growth(upper, FLOW)
    linear = math.exp(-leak * FLOW) * z.norm(dim=-1)
    return ((end.norm(dim=-1) - linear) / (allowed - linear)).amax(dim=-1)


def floor_ratio(z, W1, b1, W2, activation, leak, g) -> Tensor:
    """(σ(T) − σ₀)/(e^{λT}σ(0) + φ(e^{λT} − 1)/λ − σ₀), φ the spread of a g that differs from token to token.

    σ₀ is the bound with −κ for λ, all that a network of zeros is allowed.
    """
    upper = rates(W1, W2, activation, leak)[1]
    end = flow(lambda u: network(u, W1, b1, W2, activation) + g, z, leak)

    def allowed(rate: Tensor) -> Tensor:
        return torch.exp(rate * FLOW) * spread(z) + spread(g) * growth(rate, FLOW)

    linear = allowed(torch.full_like(upper, -leak))
    return (spread(end) - linear) / (allowed(upper) - linear)


SCORES: dict[str, Score] = {
    "lipschitz": lipschitz_ratio,
    "upper": upper_ratio,
    "lower": lower_ratio,
    "separation": separation_ratio,
    "step": step_ratio,
    "growth": growth_ratio,
}
FLOWS = ("separation", "growth")  # with smooth activations, where RK4 is exact enough for ROUNDING


def attack_floor(seed: int, batch: int, steps: int) -> Tensor:
    found = []
    for activation in SMOOTH:
        for leak in (0.0, 1.0):
            begin = starts(seed, "floor", activation, leak, batch=batch, tokens=4, width=2, hidden=3)
            g = normal(seed, "floor", activation, leak, "g", size=(batch, 4, 2))

            def score(z, W1, b1, W2, g, a=activation, k=leak):
                return floor_ratio(z, W1, b1, W2, a, k, g)

            found.append(ascend(score, *begin, g, steps=steps))
    return torch.cat(found)


def attack_kinks(seed: int, batch: int = 64) -> Tensor:
    """|error of RK4| / (Δt²/24 Σ|s_k|) for clock networks with one to three kinks: measured runs, random and hunted.

    Ascent climbs on the formula Σ s_k B(θ_k); the runs that count are real ones with what it found.
    """
    count = torch.randint(1, 4, (batch,), generator=stream(seed, "kinks"))
    steps = torch.randint(3, 12, (batch,), generator=stream(seed, "steps"))
    places, strengths = normal(seed, "places", size=(batch, 3)), normal(seed, "strengths", size=(batch, 3))
    strengths = strengths * (torch.arange(3) < count.unsqueeze(-1))
    first = places.sigmoid().clone()

    def formula(x: Tensor, s: Tensor) -> Tensor:
        return (s * kink_error((x.sigmoid() * steps.unsqueeze(-1)) % 1)).sum(dim=-1).abs() / s.abs().sum(dim=-1)

    hunted, s = places.clone().requires_grad_(True), strengths.clone().requires_grad_(True)
    adam = torch.optim.Adam([hunted, s], lr=0.02)
    for _ in range(150):
        adam.zero_grad()
        (-formula(hunted, s)).sum().backward()
        s.grad = s.grad * (strengths != 0)
        adam.step()
    found = []
    for tau, size in ((first, strengths), (hunted.detach().sigmoid(), s.detach())):
        for k, sk, n in zip(tau.tolist(), size.tolist(), steps.tolist(), strict=True):
            found.append(abs(clock_error(k, sk, n)) * 24 * n**2 / sum(map(abs, sk)))
    return torch.tensor(found, dtype=torch.float64)


# Exact laws.


def _gap(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).flatten(1).norm(dim=-1) / (one.flatten(1).norm(dim=-1) + other.flatten(1).norm(dim=-1) + 1e-30)


def influence_of_others(seed: int, batch: int = 16, steps: int = 20, attention_strength: float = 0.0) -> Tensor:
    """|∂u_0(T)/∂(the other tokens at 0)| relative to |∂u_0(T)/∂u_0(0)|, as large as ascent makes it: 0 for a reaction.

    With a little attention it is not: that is the control.
    """
    z, W1, b1, W2 = starts(seed, "locality", batch=batch, tokens=3, width=2, hidden=4)
    direction = normal(seed, "direction", size=(batch, 3, 2))
    eye = torch.eye(2, dtype=torch.float64)

    def end(u: Tensor, W1: Tensor, b1: Tensor, W2: Tensor) -> Tensor:
        def rate(v):
            mixed = attention_strength * attention(v, eye, eye) if attention_strength else 0.0
            return network(v, W1, b1, W2, "tanh", 1.0) + mixed

        return flow(rate, u, steps=4)

    def score(z, W1, b1, W2, direction):
        own, others = direction.clone(), direction.clone()
        own[:, 1:], others[:, 0] = 0, 0
        moved = [jvp(lambda u: end(u, W1, b1, W2), (z,), (v,))[1][:, 0].norm(dim=-1) for v in (own, others)]
        return moved[1] / moved[0]

    return ascend(score, z, W1, b1, W2, direction, steps=steps)


def block_gap(seed: int, batch: int = 32, steps: int = 30, wrong: bool = False) -> Tensor:
    """Relative gap of R'(z)v and (W₂ diag φ'(W₁z + b₁) W₁ − κ)v, as large as ascent makes it; wrong: the transpose."""
    found = []
    for leak in (0.0, 1.0):
        z, W1, b1, W2 = starts(seed, "block", leak, batch=batch, tokens=2, width=3, hidden=5)
        v = normal(seed, "block", leak, "v", size=z.shape)

        def score(z, W1, b1, W2, v, leak=leak):
            change = jvp(lambda u: network(u, W1, b1, W2, "tanh", leak), (z,), (v,))[1]
            slopes = 1 - torch.tanh(z @ W1.transpose(-1, -2) + b1.unsqueeze(-2)) ** 2
            first, last = (W2, W1.transpose(-1, -2)) if wrong else (W1.transpose(-1, -2), W2)
            return _gap(change, (slopes * (v @ first)) @ last.transpose(-1, -2) - leak * v)

        found.append(ascend(score, z, W1, b1, W2, v, steps=steps))
    return torch.cat(found)


def agreement_gap(seed: int, batch: int = 32, steps: int = 30, wrong: bool = False) -> Tensor:
    """Relative gap of F'(u)δ and (R'(c) − α)δ at u_i = c, Σδ_i = 0, F = α(Att(u) − u) + R; wrong: αV added."""
    z, W1, b1, W2 = starts(seed, "agreement", batch=batch, tokens=1, width=2, hidden=4)
    A, V = (normal(seed, "agreement", k, size=(batch, 2, 2)) for k in "AV")
    delta = normal(seed, "agreement", "δ", size=(batch, 5, 2))
    alpha = 0.7

    def score(c, W1, b1, W2, A, V, delta):
        delta = delta - delta.mean(dim=1, keepdim=True)
        u = c.repeat(1, 5, 1)

        def rate(v):
            return alpha * (attention(v, A, V) - v) + network(v, W1, b1, W2, "tanh")

        law = jvp(lambda v: network(v, W1, b1, W2, "tanh"), (u,), (delta,))[1] - alpha * delta
        if wrong:
            law = law + alpha * delta @ V.transpose(-1, -2)
        return _gap(jvp(rate, (u,), (delta,))[1], law)

    return ascend(score, z, W1, b1, W2, A, V, delta, steps=steps)


def crowds_misjudged(seed: int, tries: int = 64, wrong: bool = False) -> Tensor:
    """Where the sign of the largest eigenvalue at two crowds ±u* is not that of α − α_c; wrong: α_c = β − 1.

    The equation itself is differentiated, four tokens. Half of the tries are close to α_c, where a law can fail.
    """
    gain = 1.1 + 3 * torch.rand(tries, generator=stream(seed, "β"), dtype=torch.float64)
    share = torch.rand(tries, generator=stream(seed, "α"), dtype=torch.float64)
    found = []
    for number, (beta, part) in enumerate(zip(gain.tolist(), share.tolist(), strict=True)):
        critical = merging_law(beta)
        alpha = critical * (0.99 if part < 0.5 else 1.01) if number % 2 else 0.98 * part * (beta - 1)
        rest = well(beta, alpha)
        u = torch.tensor([rest, rest, -rest, -rest], dtype=torch.float64).view(1, 4, 1)
        grows = logarithmic_norm(tug_of_war(alpha, beta), u).item() > 0  # the Jacobian is symmetric here
        found.append(grows != (alpha > (beta - 1 if wrong else critical)))
    return torch.tensor(found)


def trace_scores(seed: int, draws: int = 2000) -> tuple[Tensor, Tensor]:
    """|s²/law² − 1| in units of √(2/n), its standard deviation, for many kinds of tokens; the same without the ½."""
    shapes = {
        "long": lambda d: 100 * normal(seed, "long", d, size=(d,)),
        "short": lambda d: 1e-3 * normal(seed, "short", d, size=(d,)),
        "one entry": lambda d: torch.eye(d, dtype=torch.float64)[0],
        "equal": lambda d: torch.ones(d, dtype=torch.float64),
    }
    right, wrong = [], []
    for number, (width, hidden) in enumerate(((4, 64), (16, 32), (32, 32))):
        for kind in ("normal", "torch"):
            for place, shape in enumerate(shapes.values()):
                found, law = traces(derive(seed, number, place), shape(width), hidden, draws=draws, kind=kind)
                unit = math.sqrt(2 / draws)
                share = found.var().item() / law**2
                right.append(abs(share - 1) / unit)
                wrong.append(abs(share / 2 - 1) / unit)
    return torch.tensor(right), torch.tensor(wrong)


@experiment("attack_reaction", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of every statement on the feed-forward term (P2 eq 6, P1 eq 12-13).

    One seed of every attack: inequalities by the ratio to their bound, exact laws by the gap.
    """
    batch, ratios = 24, {}
    for name, score in SCORES.items():
        activations, steps = (SMOOTH, 25) if name in FLOWS else (tuple(ACTIVATIONS), 100)
        ratios[name] = over_sizes(seed, name, score, activations, batch, steps)
    ratios |= {"floor": attack_floor(seed, batch, 60), "kinks": attack_kinks(seed)}
    exact = {"locality": influence_of_others(seed), "block": block_gap(seed), "agreement": agreement_gap(seed)}
    wrong = {
        "locality": influence_of_others(seed, attention_strength=0.01),
        "block": block_gap(seed, wrong=True),
        "agreement": agreement_gap(seed, wrong=True),
    }
    crowds, wrong_crowds = (crowds_misjudged(seed, wrong=w) for w in (False, True))
    right_scores, wrong_scores = trace_scores(seed)
    return attack_result(
        "attack_reaction",
        scale,
        seed,
        corrected=ratios,
        figures={
            "exact_attempts": sum(len(gap) for gap in exact.values()) + len(crowds),
            "exact_violations": sum(int((gap > EXACT).sum()) for gap in exact.values()) + int(crowds.sum()),
            **{f"gap_{name}": gap.max().item() for name, gap in exact.items()},
            "trace_attempts": len(right_scores),
            "trace_worst_score": right_scores.max().item(),
        },
        controls={
            **{f"wrong_{name}": int((gap > EXACT).sum()) for name, gap in wrong.items()},
            "wrong_crowds": int(wrong_crowds.sum()),
            "wrong_trace": int((wrong_scores > 5).sum()),
        },
        configuration={"exact": EXACT, "flow": FLOW, "flow_steps": STEPS},
    )
