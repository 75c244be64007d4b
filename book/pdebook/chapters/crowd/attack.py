"""An adversary against the crowd limit: the field of a law, its flow, layers, samples, and modes on the circle.

Laws are atoms with masses, which the search moves too. The parts of a constant are shrunk apart: what a moved query
costs (x), what a moved law costs (the root), and how fast that grows with x (the exponent).
"""

import math

import torch
from torch import Tensor
from torch.func import jvp

from pdebook.chapters.crowd import laws
from pdebook.evidence.adversary import Start, Statement, attack, over_and_over
from pdelab.formulas import circle_rate, growth, longest, norm2, per_example
from pdelab.integrators import RK4, flow
from pdelab.seeds import stream

EXACT = 1e-9  # relative gap of two ways to compute the growth of a mode
FIRST = 1e-6  # relative length of a displacement below which rounding would decide


def sized(matrix: Tensor, log_size: Tensor) -> Tensor:
    """The matrix with the spectral norm e^{log_size}."""
    return matrix * per_example(log_size.exp() / norm2(matrix))


def cost(moved: Tensor, mass: Tensor, p: float) -> Tensor:
    """(Σ m_j|z_j|^p)^{1/p}: the price of a coupling that moves atom j by z_j, at least W_p."""
    apart = moved.norm(dim=-1)
    return apart.amax(dim=-1) if p == math.inf else (mass * apart**p).sum(dim=-1) ** (1 / p)


# The field of a law


def field(q, dq, y, dy, logits, A, V, log_sizes, *, p, x_part=1.0, root=1.0, exponent=1.0) -> Tensor:
    """|Att[μ](q) − Att[ν](q')| ≤ ‖V‖(x|q − q'| + √(1+x²) e^{2x/p} W_p(μ, ν)), x = ‖A‖R²; (1+2x) for the root at p = 1.

    μ are atoms y with masses softmax(logits), ν the same atoms moved by dy: this coupling costs at least W_p.
    """
    log_a, log_query, log_law = log_sizes.unbind(dim=-1)
    A, V = sized(A, log_a), sized(V, torch.zeros_like(log_a))
    dq, dy = per_example(log_query.exp()) * dq, per_example(log_law.exp()) * dy

    R = torch.cat([q, q + dq, y, y + dy], dim=-2)
    R = longest(R)
    q, dq, y, dy = (z / per_example(R) for z in (q, dq, y, dy))  # R = 1
    mass = logits.softmax(dim=-1)
    change = (laws.read(q + dq, y + dy, A, V, mass) - laws.read(q, y, A, V, mass)).flatten(1).norm(dim=-1)

    x, asked, moved = norm2(A), dq.flatten(1).norm(dim=-1), cost(dy, mass, p)
    bound = x_part * x * asked + laws.law_part(x, p, root, exponent) * moved
    return torch.where(asked + moved > FIRST, change / bound, 0.0)


def a_lonely_atom(seed: int, **drawn: Tensor) -> Start:
    """Sharp and blunt attention, small and large displacements; of every other start one atom is light and opposite.

    There the query prefers what is nearly absent, and the law's part of the bound is nearly reached.
    """
    batch = len(drawn["y"])
    turn = torch.arange(batch)
    sizes = drawn["log_sizes"].clone()
    sizes[:, 0] = over_and_over([-2.0, 0.0, 0.7, 1.2, 1.7, 2.3, 3.0], batch)
    sizes[:, 1] = over_and_over([-1.0, -6.0, -8.0], batch)
    sizes[:, 2] = over_and_over([-6.0, -5.0, -5.0, -8.0], batch)

    y, logits = drawn["y"].clone(), drawn["logits"].clone()
    second = turn % 2 == 1
    sizes[second, 1], sizes[second, 2] = -10.0, -5.0
    q = drawn["q"][second]
    y[second] = -q + 0.01 * y[second]
    y[second, 0] = q[:, 0]
    logits[second] = 0.01 * logits[second]
    logits[second, 0] -= 2 * sizes[second, 0].exp() + 1
    A = drawn["A"].clone()
    A[second] = torch.eye(A.shape[-1], dtype=A.dtype)
    dy = drawn["dy"].clone()
    dy[second] = 0.01 * dy[second]
    dy[second, 0] = q[:, 0]
    return drawn | {"log_sizes": sizes, "y": y, "logits": logits, "A": A, "dy": dy}


# The flow


def crowd_rate(A: Tensor, V: Tensor, G: Tensor, mass: Tensor | None = None, *, causal: bool = False):
    """u' = Att[law](u) + Gu for every atom."""
    return lambda u: laws.read(u, u, A, V, mass, causal=causal) + u @ G.mT


def set_up(A: Tensor, V: Tensor, G: Tensor, log_sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, V and G with sizes of their own."""
    return tuple(sized(z, size) for z, size in zip((A, V, G), log_sizes.unbind(dim=-1), strict=True))


def stability(u, du, A, V, G, log_sizes, *, T, causal, x_part=1.0, root=1.0, f=1.0) -> Tensor:
    """max_i|u_i − v_i| grows by e^{KT} at most, K = ‖V‖(x + √(1+x²)) + f, x = ‖A‖R_T²; also with a causal mask.

    The score is the measured rate of growth over K.
    """
    A, V, G = set_up(A, V, G, log_sizes)
    du = 1e-3 * du / per_example(longest(du))
    u = u / per_example(torch.maximum(longest(u), longest(u + du)))
    rate = crowd_rate(A, V, G, causal=causal)
    grown = longest(flow(rate, u + du, T=T, steps=4) - flow(rate, u, T=T, steps=4)) / longest(du)

    a, v, g = norm2(A), norm2(V), norm2(G)
    K = laws.rate_of(a, v, laws.reach(1.0, v + g, T), f=f * g, x_part=x_part, root=root)
    return grown.log() / (K * T)


def stability_in_the_mean(u, du, logits, A, V, G, log_sizes, *, T, root=1.0, exponent=1.0, f=1.0) -> Tensor:
    """(Σm_i|u_i − v_i|²)^{½} grows by e^{K₂T} at most, K₂ = ‖V‖(x + √(1+x²) e^x) + f, for atoms with masses m_i.

    The score is the measured rate of growth over K₂.
    """
    A, V, G = set_up(A, V, G, log_sizes)
    mass = logits.softmax(dim=-1)
    du = 1e-3 * du / per_example(longest(du))
    u = u / per_example(torch.maximum(longest(u), longest(u + du)))
    rate = crowd_rate(A, V, G, mass)
    apart = flow(rate, u + du, T=T, steps=4) - flow(rate, u, T=T, steps=4)
    grown = cost(apart, mass, 2) / cost(du, mass, 2)

    a, v, g = norm2(A), norm2(V), norm2(G)
    K = laws.rate_of(a, v, laws.reach(1.0, v + g, T), 2, f=f * g, root=root, exponent=exponent)
    return grown.log() / (K * T)


def flow_map(q, dq, y, logits, A, V, G, log_sizes, *, T, x_part=1.0, f=1.0) -> Tensor:
    """e^{−κT} ≤ |Φ(q) − Φ(q')|/|q − q'| ≤ e^{κT}, κ = ‖V‖x + f, for two places that the crowd of atoms y carries along.

    The score is the measured rate, of either sign, over κ.
    """
    A, V, G = set_up(A, V, G, log_sizes)
    dq = 1e-3 * dq / per_example(longest(dq))
    everything = torch.cat([q, q + dq, y], dim=-2)
    everything = everything / per_example(longest(everything))
    mass = logits.softmax(dim=-1)

    def rate(z: Tensor) -> Tensor:
        return laws.read(z, z[..., 2:, :], A, V, mass) + z @ G.mT

    end = flow(rate, everything, T=T, steps=4)
    before, after = ((z[..., 1, :] - z[..., 0, :]).norm(dim=-1) for z in (everything, end))
    a, v, g = norm2(A), norm2(V), norm2(G)
    kappa = x_part * v * a * laws.reach(1.0, v + g, T) ** 2 + f * g
    return (after / before).log().abs() / (kappa * T)


def start_flow(seed: int, **drawn: Tensor) -> Start:
    """‖A‖ from 0.1 to 10, ‖V‖ near 1, ‖G‖ from nothing to 3."""
    batch = len(drawn["A"])
    sizes = drawn["log_sizes"].clone()
    sizes[:, 0] = over_and_over([-2.0, 0.0, 1.0, 2.3], batch)
    sizes[:, 1] = over_and_over([0.0, 0.0, 0.0, 0.0, -2.0], batch)
    sizes[:, 2] = over_and_over([-6.0, 1.0, -6.0], batch)
    return drawn | {"log_sizes": sizes}


def one_sees_pairs(seed: int, **drawn: Tensor) -> Start:
    """As before; in every second start with d > 1 token 0 is e₂ and sees the others, ±e₁ in turn, evenly.

    All move along e₁, the others also towards or away from e₂: for many tokens both parts of K are then reached.
    """
    drawn = start_flow(seed, **drawn)
    batch, n, d = drawn["u"].shape
    if d == 1:
        return drawn
    second = torch.arange(batch) % 2 == 1
    first, other = torch.eye(d, dtype=torch.float64)[:2]
    side = over_and_over([[1.0], [-1.0]], n - 1)
    x = drawn["log_sizes"][:, 0].exp()

    u, du, A, V = (drawn[name].clone() for name in ("u", "du", "A", "V"))
    u[second] = torch.cat([other[None], side * first])
    for b in torch.where(second)[0]:
        leaning = torch.nn.functional.normalize(first - x[b] * side * other, dim=-1)
        du[b] = torch.cat([first[None], leaning])
        A[b] = torch.diag(torch.ones(d, dtype=torch.float64) - 2 * other)  # token 0 turns away from itself
        V[b] = torch.eye(d, dtype=torch.float64)
    return drawn | {"u": u, "du": du, "A": A, "V": V}


# Layers


def layers(u, A, V, G, W, log_sizes, log_T, *, K=1.0, M=1.0, K_t=1.0) -> Tensor:
    """max_ℓ,i|u_i^ℓ − u_i(t_ℓ)| ≤ ½(M + K_t/K)h(e^{KT} − 1) for L = 4 layers u + hX, X = Att + Gu, V(t) = V + tW.

    M = bR_T, b the largest ‖V(t)‖ plus ‖G‖, K_t = ‖W‖R_T: the same for every number of tokens.
    """
    drift = sized(W, log_sizes[:, 3])
    A, V, G = set_up(A, V, G, log_sizes[:, :3])
    u, steps, fine, T = u / per_example(longest(u)), 4, 4, log_T.exp()
    h = per_example(T / steps)

    def rate(z: Tensor, t: Tensor, mask: None = None) -> Tensor:
        return laws.read(z, z, A, V + t * drift) + z @ G.mT

    exact, stacked, worst = u, u, torch.zeros_like(T)
    for n in range(steps):
        stacked = stacked + h * rate(stacked, n * h)
        for m in range(fine):
            exact = RK4().step(rate, exact, (n + m / fine) * h, h / fine)
        worst = torch.maximum(worst, longest(stacked - exact))

    values = torch.maximum(norm2(V), norm2(V + per_example(T) * drift))
    b = values + norm2(G)
    R = laws.reach(1.0, b, T)
    rate_K = K * laws.rate_of(norm2(A), values, R, f=norm2(G))
    return worst / laws.layers_bound(rate_K, M * b * R, K_t * norm2(drift) * R, T, steps)


def start_layers(seed: int, **drawn: Tensor) -> Start:
    """Short times, blunt scores; in turn attention, the network Gu or the drift W alone is large."""
    batch = len(drawn["A"])
    alone = [[-4.0, 0.0, -7.0, -9.0], [-4.0, -4.0, 0.0, -9.0], [-4.0, -7.0, -7.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
    eye = torch.eye(drawn["A"].shape[-1], dtype=torch.float64)
    u = drawn["u"][:, :1] + 0.1 * drawn["u"]
    close = {name: eye + 0.1 * drawn[name] for name in ("V", "G", "W")}
    return drawn | close | {"u": u, "log_sizes": over_and_over(alone, batch), "log_T": drawn["log_T"] - 3}


# Samples


def sample(
    y, odds, A, V, log_sizes, *, n, what="coupled", v=1.0, R=1.0, exponent=1.0, count=1.0, least=1.0
) -> Tensor:  # fmt: skip
    """(E(1/N)Σ|u_i − Ȳ_i|²)^{½} ≤ e^{2x} ‖V‖R_T (√(N+3)/N)(e^{K₂T} − 1)/K₂: tokens drawn from a law, and their limit.

    The law has two atoms, y₀ with probability sigmoid(odds). Tokens that start together stay together, so N tokens are
    two atoms with masses k/N and 1 − k/N, and the mean over all samples is a finite sum.
    what: coupled; largest: E max_i|u_i − Ȳ_i| ≤ 2e^{2x}‖V‖R_T[1/N + √(2/N)(1 + √ln 2N)](e^{KT} − 1)/K;
    function: the root mean square error of ∫φ for φ(y) = w·y is at most the first bound plus sd(φ)/√N.
    """
    log_a, log_T = log_sizes.unbind(dim=-1)
    A, V, T = sized(A, log_a), sized(V, torch.zeros_like(log_a)), log_T.exp()
    y = y / per_example(longest(y))

    k = torch.arange(n + 1, dtype=torch.float64)
    chances = torch.distributions.Binomial(n, logits=odds.unsqueeze(-1)).log_prob(k).exp()  # (batch, k)
    masses = torch.stack([k / n, 1 - k / n], dim=-1)  # (k, 2)
    p = odds.sigmoid().unsqueeze(-1)
    law = torch.stack([p, 1 - p], dim=-1)  # (batch, 1, 2)

    def moved(mass: Tensor) -> Tensor:
        A4, V4 = A.unsqueeze(1), V.unsqueeze(1)
        start = y.unsqueeze(1).expand(-1, mass.shape[-2], -1, -1)
        return flow(lambda u: laws.read(u, u, A4, V4, mass.clamp(min=1e-300)), start, T=T[:, None, None, None], steps=4)

    drawn, exact = moved(masses), moved(law)  # (batch, k, 2, d), (batch, 1, 2, d)
    apart = (drawn - exact).norm(dim=-1)
    largest = laws.reach(1.0, norm2(V), T)
    x, values = norm2(A) * largest**2, v * norm2(V)
    K2, K = (laws.rate_of(norm2(A), norm2(V), largest, q) for q in (2, math.inf))
    coupled = laws.noise_bound(n, x, values, R * largest, exponent, count) * growth(K2, T)

    if what == "largest":
        present = torch.where(masses > 0, apart, 0.0).amax(dim=-1)
        bound = laws.largest_noise_bound(n, x, values, R * largest, least) * growth(K, T)
        return (chances * present).sum(dim=-1) / bound
    if what == "function":
        side = V[:, 0] / V[:, 0].norm(dim=-1, keepdim=True)  # a unit vector w, of the search's choice
        seen, wanted = ((z * side[:, None, None]).sum(dim=-1) for z in (drawn, exact))  # (batch, k or 1, 2)
        error = (masses * seen).sum(dim=-1) - (law * wanted).sum(dim=-1)
        spread = (p * (1 - p)).sqrt().squeeze(-1) * (wanted[:, 0, 0] - wanted[:, 0, 1]).abs()
        return (chances * error**2).sum(dim=-1).sqrt() / (coupled + least * spread / math.sqrt(n))
    return (chances * (masses * apart**2).sum(dim=-1)).sum(dim=-1).sqrt() / coupled


def largest(*args, **options) -> Tensor:
    """E max_i|u_i − Ȳ_i| ≤ 2e^{2x} ‖V‖R_T [1/N + √(2/N)(1 + √ln 2N)](e^{KT} − 1)/K."""
    return sample(*args, what="largest", **options)


def mean_of_a_function(*args, **options) -> Tensor:
    """(E|∫φ dμ^N − ∫φ dμ|²)^{½} ≤ the bound of the coupled error plus sd(φ)/√N, for |φ(y) − φ(z)| ≤ |y − z|."""
    return sample(*args, what="function", **options)


def start_sample(seed: int, **drawn: Tensor) -> Start:
    """‖A‖ from nearly 0 to 1.6 and short times; the atoms opposite in every other start."""
    batch = len(drawn["y"])
    sizes = drawn["log_sizes"].clone()
    sizes[:, 0] = over_and_over([-5.0, -1.0, 0.5], batch)
    sizes[:, 1] = -3.0 + 0.3 * sizes[:, 1]
    y = drawn["y"].clone()
    y[::2, 1] = -y[::2, 0]
    return drawn | {"log_sizes": sizes, "y": y}


# Modes on the circle

WRONG_RATES = {
    "backward heat": lambda k, beta: k**2 / beta,  # the kernel taken for a point
    "one k": lambda k, beta: laws.mode_rate(k, beta) / k,
}


def modes(seed, *, law="right", tokens=256) -> Tensor:
    """sin kθ grows at λ_k = k² I_k(β)/(β I_0(β)) on evenly spaced tokens on the circle, k ≤ 8, 0.5 ≤ β ≤ 20."""
    generator = stream(seed, "modes")
    scores = []
    for _ in range(32):
        k = int(torch.randint(1, 9, (1,), generator=generator))
        beta = 0.5 * 40 ** torch.rand(1, generator=generator, dtype=torch.float64).item()
        theta = 2 * math.pi * torch.arange(tokens, dtype=torch.float64) / tokens
        push = torch.sin(k * theta)
        _, change = jvp(lambda z, beta=beta: circle_rate(z, beta), (theta,), (push,))
        wanted = float(WRONG_RATES.get(law, laws.mode_rate)(k, beta))
        scores.append((change - wanted * push).abs().max() / EXACT)  # every λ_k is below 1
    return torch.stack(scores)


WEIGHTS = {"A": "d d", "V": "d d"}
MOVED = {"q": "one d", "dq": "one d", "y": "n d", "dy": "n d", "logits": "n", **WEIGHTS, "log_sizes": "three"}
ATOMS = [{"one": 1, "three": 3, "n": n, "d": d} for n, d in ((2, 1), (3, 2), (5, 3))]
TOKENS = [{"three": 3, "n": n, "d": d} for n, d in ((2, 1), (9, 2), (5, 3))]
CLOUD = {"u": "n d", "du": "n d", **WEIGHTS, "G": "d d", "log_sizes": "three"}
SHORT = {"T": (0.01, 0.3)}
TWO = {"y": "two d", "odds": "", **WEIGHTS, "log_sizes": "two"}
PAIRS = [{"two": 2, "d": d} for d in (1, 3)]


def field_statement(p: float, *shrink: str, **wrong: dict) -> Statement:
    search = {"start": a_lonely_atom, "batch": 40, "steps": 150}
    return Statement(field, MOVED, ATOMS, over={"p": (p,)}, shrink=("x_part", "root", *shrink), wrong=wrong, **search)


run = attack(
    "attack_crowd",
    {
        "field, p = ∞": field_statement(math.inf),
        "field, p = 4": field_statement(4.0, halved={"exponent": 0.5}),
        "field, p = 2": field_statement(2.0, "exponent"),
        "field, p = 1": field_statement(1.0, "exponent"),
        "stability, p = ∞": Statement(
            stability,
            CLOUD,
            TOKENS,
            over=SHORT | {"causal": (False, True)},
            start=one_sees_pairs,
            shrink=("x_part", "root", "f"),
            steps=60,
        ),
        "stability, p = 2": Statement(
            stability_in_the_mean,
            CLOUD | {"logits": "n"},
            TOKENS,
            over=SHORT,
            start=start_flow,
            shrink=("root", "f"),
            wrong={"no exponential": {"exponent": 0.0}},
            steps=60,
        ),
        "flow map": Statement(
            flow_map,
            {"q": "one d", "dq": "one d", "y": "n d", "logits": "n", **WEIGHTS, "G": "d d", "log_sizes": "three"},
            ATOMS,
            over=SHORT,
            start=start_flow,
            shrink=("x_part", "f"),
            steps=60,
        ),
        "layers": Statement(
            layers,
            {"u": "n d", **WEIGHTS, "G": "d d", "W": "d d", "log_sizes": "four", "log_T": ""},
            [{"four": 4, "n": n, "d": d} for n, d in ((1, 1), (3, 2), (24, 2))],
            start=start_layers,
            shrink=("K", "M", "K_t"),
            steps=60,
        ),
        "sample": Statement(
            sample,
            TWO,
            PAIRS,
            over={"n": (4, 40)},
            start=start_sample,
            shrink=("v", "R", "count"),
            wrong={"no exponential": {"exponent": 0.0}},
            steps=40,
        ),
        "largest error": Statement(
            largest, TWO, PAIRS, over={"n": (4, 40)}, start=start_sample, wrong={"no root": {"least": 0.0}}, steps=40
        ),
        "test function": Statement(
            mean_of_a_function, TWO, PAIRS, over={"n": (4, 40)}, start=start_sample, shrink=("least", "v"), steps=40
        ),
        "modes": Statement(modes, wrong={name: {"law": name} for name in WRONG_RATES}),
    },
)
