"""An adversary against conditional stability:  u' = F(u) + S(u), S = −γ(u − μ)/√(σ² + ε).  (P2 Theorem 3.3, eq 13-15)

Printed: ∫⟨u, S⟩ ≤ −2γE for an effective rate γ > 0, and E decays if γ exceeds the sum of Lipschitz constants. The
search varies fields, systems and the effective rate. Corrected: the spread σ decays inside a basin (Theorem A), also
for Euler steps (B); it falls to a floor if constants are pushed apart; and another S bounds the field (C).

Each corrected statement is a ratio of what happens to what is allowed, at most 1 if it is true. The controls are the
bounds shrunk to 90 % and Theorem A with its basin condition dropped.
"""

import math

import torch
from torch import Tensor

from pdebook.chapters.stability.laws import fields, follow, stabilised
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import laplacian
from pdelab.formulas import norm2
from pdelab.seeds import normal, stream

FEATURES = ("u", "A", "V", "W", "U")  # what a random system is made of, beside its numbers


def centred(u: Tensor) -> Tensor:
    """u − μ: (batch, token, feature)."""
    return u - u.mean(dim=-2, keepdim=True)


def size(u: Tensor) -> Tensor:
    """‖u‖ = √((1/N) Σ|u_i|²): (batch,)."""
    return u.square().sum(dim=(-1, -2)).div(u.shape[-2]).sqrt()


def weights(u: Tensor, A: Tensor) -> Tensor:
    return (u @ A @ u.transpose(-1, -2)).softmax(dim=-1)


def push(u: Tensor, A: Tensor, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """G(u) = P(u) u Vᵀ + tanh(u Wᵀ) Uᵀ: attention and a feed-forward network, without −u."""
    return weights(u, A) @ u @ V.transpose(-1, -2) + torch.tanh(u @ W.transpose(-1, -2)) @ U.transpose(-1, -2)


def allowed_push(tokens: int, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """K = √N ‖V‖ + ‖U‖‖W‖: ‖G(u) − G(μ)‖ ≤ Kσ for every field of N tokens."""
    return math.sqrt(tokens) * norm2(V) + norm2(U) * norm2(W)


def draw(seed: int, name: object, batch: int, tokens: int, width: int) -> list[Tensor]:
    """u, A, V, W, U: some systems attend to all alike, some sharply; in some the network rules, in some attention."""
    generator = stream(seed, name, "sizes")
    sizes = torch.pow(10, 3 * torch.rand(batch, 5, 1, 1, generator=generator, dtype=torch.float64) - 2)
    shapes = {"u": (tokens, width), "A": (width, width), "V": (width, width), "W": (width, width), "U": (width, width)}
    return [sizes[:, n] * normal(seed, name, k, size=(batch, *shapes[k])) for n, k in enumerate(FEATURES)]


# Each ratio below is at most 1 if its statement is true.

SHAPES = ((2, 1), (4, 1), (4, 2))


def one_sided_ratio(u: Tensor, A: Tensor, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """⟨u − μ, G(u) − G(μ)⟩ / ((√c ‖V‖ + f)σ²), c the largest column sum of P(u), f = ‖U‖‖W‖."""
    rest, mean = centred(u), u.mean(dim=-2, keepdim=True).expand_as(u)
    gained = (rest * (push(u, A, V, W, U) - push(mean, A, V, W, U))).sum(dim=(-1, -2))
    root = weights(u, A).sum(dim=-2).amax(dim=-1).sqrt()
    return gained / ((root * norm2(V) + norm2(U) * norm2(W)) * rest.square().sum(dim=(-1, -2)))


def attack_one_sided(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    """The worst ratio of each start: is λ = √c ‖V‖ + f − 2 a one-sided constant towards the mean?"""
    found = [ascend(one_sided_ratio, *draw(seed, ("one-sided", *s), batch, *s), steps=steps) for s in SHAPES]
    return torch.cat(found)


def poincare_ratio(u: Tensor, M: Tensor, B: Tensor) -> Tensor:
    """D_min 4N² sin²(π/2N) σ² over −⟨u − μ, D Δ_N u⟩, reflecting ends, D = MMᵀ + B − Bᵀ, D_min that of sym D = MMᵀ."""
    tokens, symmetric = u.shape[-2], M @ M.transpose(-1, -2)
    D = symmetric + B - B.transpose(-1, -2)
    lost = -(centred(u) * (laplacian(u) @ D.transpose(-1, -2))).sum(dim=(-1, -2))
    least = torch.linalg.eigvalsh(symmetric)[:, 0] * 4 * tokens**2 * math.sin(math.pi / 2 / tokens) ** 2
    return least * centred(u).square().sum(dim=(-1, -2)) / lost


def attack_poincare(seed: int, batch: int = 48, steps: int = 150) -> Tensor:
    """How much diffusion takes off λ: matrices D that need not be symmetric."""
    found = []
    for tokens, width in ((2, 1), (4, 2), (8, 2)):
        sizes = {"u": (tokens, width), "M": (width, width), "B": (width, width)}
        start = [normal(seed, "poincare", tokens, k, size=(batch, *size)) for k, size in sizes.items()]
        found.append(ascend(poincare_ratio, *start, steps=steps))
    return torch.cat(found)


def decay_ratio(u: Tensor, *rest: Tensor, steps: int = 32) -> Tensor:
    """What Theorem A promises of ln(σ₀/σ(T)), (γ/√(σ₀² + ε) − λ)T, over what happens: at most 1.

    rest: A, V, W, U and numbers (batch, 3): ln ε, the logarithm of the excess of γ/(λ√(σ₀² + ε)) over 1, so that the
    basin condition always holds, and T by its place in an interval in which RK4 is exact to 1e-7.
    """
    *system, numbers = rest
    K = allowed_push(u.shape[-2], *system[1:])
    eps, sigma0 = numbers[:, 0].exp(), size(centred(u))
    scale = (sigma0**2 + eps).sqrt()
    gamma = K * scale * (1 + numbers[:, 1].exp())
    T = 2 * torch.sigmoid(numbers[:, 2]) / (gamma / eps.sqrt() + K)
    sigma = size(centred(_integrate(u, system, gamma, eps, T, steps)))
    return (gamma / scale - K) * T / torch.log(sigma0 / sigma)


def _integrate(u: Tensor, system: list[Tensor], gamma: Tensor, eps: Tensor, T: Tensor, steps: int) -> Tensor:
    """u' = G(u) + S(u) up to T, by RK4, one T for each example."""
    gamma, eps, dt = (x.view(-1, 1, 1) for x in (gamma, eps, T / steps))

    def rate(v: Tensor) -> Tensor:
        rest = centred(v)
        return push(v, *system) - gamma * rest / (size(rest).view(-1, 1, 1) ** 2 + eps).sqrt()

    for _ in range(steps):
        k1 = rate(u)
        k2 = rate(u + dt / 2 * k1)
        k3 = rate(u + dt / 2 * k2)
        u = u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rate(u + dt * k3))
    return u


def attack_decay(seed: int, batch: int = 32, steps: int = 40) -> Tensor:
    """Theorem A on attention and network with λ from the weights alone (κ = 0: a leak only helps)."""
    found = []
    for shape in SHAPES:
        start = [*draw(seed, ("decay", *shape), batch, *shape), normal(seed, "numbers", *shape, size=(batch, 3))]
        found.append(ascend(decay_ratio, *start, steps=steps))
    return torch.cat(found)


def extinction_ratio(u: Tensor, *rest: Tensor, steps: int = 24) -> Tensor:
    """Without ε: the promised fall σ₀ − b(T) over the fall σ₀ − σ(T), b = e^{λT}σ₀ − γ(e^{λT} − 1)/λ: at most 1.

    T is half the time at which b is 0, so the field is still moving.
    """
    *system, numbers = rest
    K, sigma0 = allowed_push(u.shape[-2], *system[1:]), size(centred(u))
    gamma = K * sigma0 * (1 + numbers[:, 0].exp())
    T = -torch.log1p(-K * sigma0 / gamma) / K / 2
    bound = torch.exp(K * T) * sigma0 - gamma * torch.expm1(K * T) / K
    sigma = size(centred(_integrate(u, system, gamma, torch.zeros_like(K), T, steps)))
    return (sigma0 - bound) / (sigma0 - sigma)


def attack_extinction(seed: int, batch: int = 32, steps: int = 40) -> Tensor:
    """Theorem A without ε, on the same systems."""
    found = []
    for shape in SHAPES:
        start = [*draw(seed, ("extinction", *shape), batch, *shape), normal(seed, "times", *shape, size=(batch, 1))]
        found.append(ascend(extinction_ratio, *start, steps=steps))
    return torch.cat(found)


def euler_ratio(u: Tensor, *rest: Tensor) -> Tensor:
    """σ₁/(qσ₀) for one Euler step of u' = G(u) − κu + S, the hypotheses of Theorem B met by construction: at most 1.

    numbers (batch, 4): ln ε, the margin of the basin, where Δt lies in its allowed interval, and ln κ.
    """
    *system, numbers = rest
    eps, leak = numbers[:, 0].exp(), numbers[:, 3].exp()
    K, sigma0 = allowed_push(u.shape[-2], *system[1:]), size(centred(u))
    scale = (sigma0**2 + eps).sqrt()
    gamma = scale * (K * (1 + numbers[:, 1].exp()) - leak).clamp(min=0)
    dt = 2 * torch.sigmoid(numbers[:, 2]) / (gamma / eps.sqrt() + leak + K)
    q = torch.maximum(1 - dt * (gamma / scale + leak - K), dt * (gamma / eps.sqrt() + leak + K) - 1)
    wide = (x.view(-1, 1, 1) for x in (gamma / scale + leak, dt))
    g, step = wide
    sigma = size(centred(u + step * (push(u, *system) - g * centred(u))))
    inside = (gamma / scale + leak > K) & (q < 1)
    return torch.where(inside, sigma / (q * sigma0), torch.zeros_like(q))


def attack_euler(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    """Theorem B on the same systems."""
    found = []
    for shape in SHAPES:
        start = [*draw(seed, ("euler", *shape), batch, *shape), normal(seed, "steps", *shape, size=(batch, 4))]
        found.append(ascend(euler_ratio, *start, steps=steps))
    return torch.cat(found)


def attack_chatter(seed: int, batch: int = 64, steps: int = 200) -> Tensor:
    """The largest σ_n/(Δtγ) of the last half of the steps, F = λu, ε = 0, 0.05 ≤ Δtλ ≤ 1, σ₀ ≤ 0.95 γ/λ.

    Each step takes at least the share Δtλ more of what is missing to γ/λ, so 100 steps are enough to arrive.
    """
    share, place = torch.rand(2, batch, generator=stream(seed, "chatter"), dtype=torch.float64)
    turn = 0.05 + 0.95 * share  # Δtλ; in units of Δtγ the basin ends at 1/(Δtλ)
    sigma, seen = 0.95 * place / turn, []
    for _ in range(steps):
        sigma = ((1 + turn) * sigma - 1).abs()
        seen.append(sigma)
    return torch.stack(seen[steps // 2 :]).amax(dim=0)


def cycles(seed: int, batch: int = 64, steps: int = 4000) -> tuple[Tensor, Tensor, Tensor]:
    """Where |a| of a⁺ = a(1 + Δtλ − Δtγ/√(a² + ε)) settles, the law √(s² − ε), and s, a law without ε; Δt = 1.

    Systems with λ ≤ 0 beyond the step limit; those whose cycle attracts too slowly for the steps are left out.
    """
    share, excess, eps = torch.rand(3, batch, generator=stream(seed, "cycle"), dtype=torch.float64)
    growth, eps = -1.5 * share, 0.1 + eps
    gamma = (2 + growth + 0.1 + 2 * excess) * eps.sqrt()
    s = gamma / (2 + growth)
    fast = (1 - (2 + growth) * (1 - eps / s**2)).abs() < 0.99
    a = 0.5 * s
    for _ in range(steps):
        a = a * (1 + growth - gamma / (a**2 + eps).sqrt())
    return a.abs()[fast], (s**2 - eps).sqrt()[fast], s[fast]


def attack_cycle(seed: int) -> Tensor:
    """|found/law − 1| for the size of the 2-cycle: 0 to rounding if the law is true."""
    found, law, _ = cycles(seed)
    return (found / law - 1).abs()


def bounded_ratio(u: Tensor, *rest: Tensor, steps: int = 64) -> Tensor:
    """‖u(T)‖/y_* for S = γ((u − μ)/√(σ² + ε) − u), y_* = (γ + f₀)/(γ − λ), from ‖u₀‖ = y_*/2: at most 1.

    F = G − 2u + b with a constant vector b (batch, 1, feature), f₀ = |b|. T = 3/(γ − λ), so that the start is
    forgotten; systems too stiff for the steps of the midpoint rule score 0.
    """
    *system, b, numbers = rest
    growth = allowed_push(u.shape[-2], *system[1:]) - 2
    root, f0 = numbers[:, 0].exp(), b.norm(dim=-1).squeeze(-1)  # √ε
    gamma = growth.clamp(min=0) + numbers[:, 1].exp()
    top = (gamma + f0) / (gamma - growth)
    T = 3 / (gamma - growth)
    stiff = gamma / root + gamma + growth + 4
    soft = T * stiff < steps
    g, e, dt = (x.view(-1, 1, 1) for x in (gamma, root**2, torch.minimum(T / steps, 1 / stiff)))

    def rate(v: Tensor) -> Tensor:
        rest = centred(v)
        return push(v, *system) - 2 * v + b + g * (rest / (size(rest).view(-1, 1, 1) ** 2 + e).sqrt() - v)

    v = u * (top / 2 / size(u)).view(-1, 1, 1)
    for _ in range(steps):
        v = v + dt * rate(v + dt / 2 * rate(v))
    return torch.where(soft, size(v) / top, torch.zeros_like(top))


def attack_bounded(seed: int, batch: int = 32, steps: int = 40) -> Tensor:
    """Theorem C on the same systems, with λ from the weights alone."""
    found = []
    for shape in SHAPES:
        start = draw(seed, ("bounded", *shape), batch, *shape)
        b = 0.1 * normal(seed, "b", *shape, size=(batch, 1, shape[1]))
        numbers = normal(seed, "tops", *shape, size=(batch, 2)) - torch.tensor([1.0, 0.0])
        found.append(ascend(bounded_ratio, *start, b, numbers, steps=steps))
    found = torch.cat(found)
    return found[found > 0]


def floor_ratio(w: Tensor, source: Tensor, numbers: Tensor, steps: int = 40) -> Tensor:
    """σ(T)/σ_* for F = λu + g(x), ‖g − mean g‖ = φ, from σ₀ = σ_*, the floor, in any direction w: at most 1.

    numbers (batch, 3): ln σ_*, ln ε and λ, of either sign: below ε/(σ_*² + ε)^{3/2}, where γσ/√(σ² + ε) − λσ stops
    rising at σ_*, so that the hypothesis holds just above σ_*; φ = γσ_*/√(σ_*² + ε) − λσ_* with γ = 1.
    """
    level, eps = numbers[:, 0].exp(), numbers[:, 1].exp()
    growth = (1 - numbers[:, 2].exp()) * eps / (level**2 + eps) ** 1.5
    forcing = level / (level**2 + eps).sqrt() - growth * level
    w, source = centred(w), centred(source)
    u = (level / size(w)).view(-1, 1, 1) * w
    g = (forcing / size(source)).view(-1, 1, 1) * source
    wide = (x.view(-1, 1, 1) for x in (growth, eps, 2 / (1 / eps.sqrt() + growth.abs()) / steps))
    k, e, dt = wide

    def rate(v: Tensor) -> Tensor:
        return k * v + g - v / (size(v).view(-1, 1, 1) ** 2 + e).sqrt()

    for _ in range(steps):
        u = u + dt * rate(u + dt / 2 * rate(u))
    return size(u) / level


def attack_floor(seed: int, batch: int = 64, steps: int = 60) -> Tensor:
    """The floor of a field whose tokens are pushed apart, from every side."""
    w, source = (normal(seed, "floor", k, size=(batch, 4, 2)) for k in "wg")
    return ascend(floor_ratio, w, source, normal(seed, "levels", size=(batch, 3)), steps=steps)


# The printed statements.

EFFECTIVE = tuple(10.0**-k for k in range(5))  # effective rates on offer, relative to γ


def dissipation_broken(seed: int, batch: int = 1000) -> Tensor:
    """∫⟨u, S⟩ > −2γ_eff E on random fields, for γ_eff/γ = 1, 0.1, …: (rate · field,), mean and spread log-uniform.

    ∫⟨u, S⟩ = −γσ²/√(σ² + ε) and 2E = |μ|² + σ² are exact, so nothing is left to rounding.
    """
    generator = stream(seed, "dissipation")
    mean, sigma = torch.pow(10, 6 * torch.rand(2, batch, generator=generator, dtype=torch.float64) - 3)
    work = sigma**2 / (sigma**2 + 1e-5).sqrt()
    return torch.cat([work < rate * (mean**2 + sigma**2) for rate in EFFECTIVE])


def decay_broken(seed: int, batch: int = 64) -> Tensor:
    """E(t) > E(0)e^{−δt} for some t ≤ 1, δ = 2(γ − λ_c), in systems above the printed threshold; γ is that of eq 9.

    Attention to all tokens alike, A(u) = Vμ − u, and R(u) = U tanh(Wu) − u have the Lipschitz constants ‖V‖ + 1 and
    ‖U‖‖W‖ + 1 everywhere; λ_c is their sum. γ/λ_c from 1.05 to 3, σ₀, |μ| and 10ε from 0.01 to 10, log-uniform.
    """
    generator = stream(seed, "decay broken")
    sigma0, mean, eps = torch.pow(10, 3 * torch.rand(3, batch, generator=generator, dtype=torch.float64) - 2)
    excess = 1.05 + 1.95 * torch.rand(batch, generator=generator, dtype=torch.float64)
    u0 = fields(sigma0, mean, 6, 3, seed)
    V, W, U = (0.5 * normal(seed, "decay", k, size=(batch, 3, 3)) for k in "VWU")
    threshold = norm2(V) + norm2(U) * norm2(W) + 2
    gamma, none = excess * threshold, torch.zeros_like(V)
    wide, soft = gamma.view(-1, 1, 1), eps.view(-1, 1, 1) / 10

    def rate(u: Tensor) -> Tensor:
        rest = centred(u)
        return push(u, none, V, W, U) - 2 * u - wide * rest / (size(rest).view(-1, 1, 1) ** 2 + soft).sqrt()

    course = follow(rate, u0, T=1.0, steps=1200)
    allowed = course.energy[0] * torch.exp(-torch.outer(torch.as_tensor(course.t), gamma - threshold) * 2).numpy()
    return torch.as_tensor((course.energy > allowed * (1 + 1e-6)).any(axis=0))


def outside_the_basin(seed: int, batch: int = 64) -> Tensor:
    """Whether Theorem A with its basin condition dropped fails: F = λu from σ₀ > √((γ/λ)² − ε); True where σ grew."""
    generator = stream(seed, "outside")
    growth, gamma, excess = 0.2 + torch.rand(3, batch, generator=generator, dtype=torch.float64)
    sigma0 = (1 + excess) * gamma / growth
    course = follow(
        stabilised(lambda u: growth.view(-1, 1, 1) * u, gamma, 0.1), fields(sigma0, 1.0, 4, 2, seed), T=1.0, steps=50
    )
    return torch.as_tensor(course.spread[-1] > course.spread[0])


@experiment("attack_stability", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the stability theorem, as printed and as corrected (P2 thm 3.3).

    One seed of every attack; `worst` is the largest ratio that the corrected statements allowed. The 2-cycle has a law
    and no bound, so it is counted apart: cycle_off is the largest distance from it.
    """
    settled, _, wrong = cycles(seed)
    cycle = attack_cycle(seed)
    return attack_result(
        "attack_stability",
        scale,
        seed,
        printed={"dissipation": dissipation_broken(seed), "decay": decay_broken(seed)},
        corrected={
            "one_sided": attack_one_sided(seed),
            "decay": attack_decay(seed),
            "extinction": attack_extinction(seed),
            "poincare": attack_poincare(seed),
            "euler": attack_euler(seed),
            "chatter": attack_chatter(seed),
            "floor": attack_floor(seed),
            "bounded": attack_bounded(seed),
        },
        figures={"cycle_attempts": len(cycle), "cycle_off": cycle.max().item()},
        controls={
            "outside_the_basin": int(outside_the_basin(seed).sum()),
            "cycle_law_without_eps": int((wrong / settled > 1.01).sum()),
        },
        configuration={"effective": list(EFFECTIVE), "shapes": [list(s) for s in SHAPES]},
    )
