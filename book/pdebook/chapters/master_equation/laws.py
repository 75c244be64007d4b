"""The two −u of P2 eq 5 and 6, the sum and the sweep, and P1's dictionary: closed forms and small models.

Euler on u' = Σ_i (G_i(u) − θu), i = 1…k, is u⁺ = (1 − kθΔt) u + Δt Σ_i G_i(u): k = 1 for one operator alone, k = 2 for
attention and FFN together. θ = 0 is a plain residual connection, θ = 1 is P2's: a dial that fades the identity out. At
random weights the cosine ρ with the input follows a law; here are the law, the stacks that obey it, and the stacks that
break one hypothesis each.  (P2 eq 4-6, Theorem 3.4; P1 eq 1, §2.3)
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from pdebook.evidence.stacks import DEPTHS, TIME, WIDTH, distance, layer, on_sphere, random_tokens, smooth_path
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, laplacian_eigenvalues, laplacian_modes
from pdelab.formulas import norm2
from pdelab.integrators import RK4, Euler, LieEuler, Rate
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import derive, normal, seeded, stream
from pdelab.solver import solve
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate

# The sum and the sweep


def random_encoder(seed: int, number: int) -> nn.TransformerEncoder:
    """One post-LayerNorm layer of torch, width 8, with all weights, gains and biases drawn from N(0, ¼)."""

    def build() -> nn.TransformerEncoderLayer:
        made = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=False)
        for weight in made.parameters():
            nn.init.normal_(weight, std=0.5)
        return made

    drawn = seeded(build, derive(seed, "encoder", number))
    return nn.TransformerEncoder(drawn, 1, enable_nested_tensor=False).double().requires_grad_(False)


def sum_against_sweep(seed: int, depths: Sequence[int] = DEPTHS, **start: float) -> list[float]:
    """‖Euler on A + S + R + S minus the sweep A, S, R, S‖/‖u₀‖ at t = 1, S = (LN(u) − u)/Δt, for each depth."""
    return [distance(added, swept, u0) for added, swept, u0 in _sum_and_sweep(seed, depths, **start)]


def motion_of_sweep(seed: int, depths: Sequence[int] = DEPTHS, **start: float) -> list[float]:
    """‖u(1) − u₀‖/‖u₀‖ of the same sweep: where it tends to 0, all that stands still meets."""
    return [distance(swept, u0, u0) for _, swept, u0 in _sum_and_sweep(seed, depths, **start)]


def _sum_and_sweep(
    seed: int, depths: Sequence[int], *, uneven: float = 0.0, settled: int = 0, stretch: float = 1.0
) -> Iterator[tuple[Field, Field, Field]]:
    """The ends of the sum and of the sweep, and their start.

    The weights are smooth in depth; ε = 0, b = 0, gains from 1 − uneven to 1 + uneven. u₀ lies on the sphere, is taken
    through LN `settled` times, which brings it near a fixed point of LN, and is stretched.
    """
    path = smooth_path(seed)
    gain = torch.linspace(1 - uneven, 1 + uneven, WIDTH, dtype=torch.float64)
    u0 = on_sphere(random_tokens(seed))
    for _ in range(settled):
        u0 = gain * on_sphere(u0)
    u0 = stretch * u0

    for layers in depths:
        dt = TIME / layers
        norm = LayerNormRate(WIDTH, 1 / dt, 0.0).double().requires_grad_(False)
        norm.norm.weight.copy_(gain)
        blocks = [layer(path(n / layers)).terms for n in range(layers)]
        made = Layered([MasterEquation(a, norm, r, norm) for a, r in blocks], dt)
        added, swept = (solve(made, u0, steps=layers, dt=dt, integrator=scheme()).final for scheme in (Euler, LieEuler))
        yield added, swept, u0


# Three features less their mean are a plane, and the sphere of LayerNorm is a circle in it: coordinates, (2, feature)
PLANE = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
PLANE = PLANE / PLANE.norm(dim=1, keepdim=True)


def circle_paths(layers: int, stretch: float = 1.0, seed: int = 1) -> dict[str, Tensor]:
    """Three tokens of three features under the sweep A, S, R, S and under Euler on the sum, from t = 0 to 1.

    Each: (layer + 1, token, 2), in the plane of mean zero over the features, where LayerNorm's circle has radius 1.
    The tokens start at `stretch` times that radius; the weights are N(0, 2.25/fan-in), the same in all layers.
    """
    dt, d = TIME / layers, 3
    attention, network = Interaction(d, bias=False), Reaction(d, 4 * d, activation="tanh", bias=False)
    norm = LayerNormRate(d, 1 / dt, 0.0)
    terms = MasterEquation(attention, norm, network, norm).double().requires_grad_(False)
    for part in (attention, network):
        for name, weight in part.named_parameters():
            weight.copy_(1.5 * normal(seed, name, size=tuple(weight.shape)) / math.sqrt(weight.shape[1]))

    angle = 0.4 + 2 * math.pi / 3 * torch.arange(3, dtype=torch.float64)
    u0 = stretch * math.sqrt(d) * torch.stack([angle.cos(), angle.sin()], dim=-1) @ PLANE
    runs = {
        name: solve(terms, u0.unsqueeze(0), steps=layers, dt=dt, integrator=scheme)
        for name, scheme in (("sweep", LieEuler()), ("sum", Euler()))
    }
    return {name: torch.cat(list(run.states)) @ PLANE.T / math.sqrt(d) for name, run in runs.items()}


# Layers u ↦ LN(u + hF(u)) with gains: LN(z) = √d GPz/|Pz|, P = I − 11ᵀ/d, ε = 0, b = 0


def post_norm(seed: int, gains: Tensor, start: Field | None = None) -> list[Field]:
    """u₀, …, u_L of u ↦ LN(u + F(u, ℓ/L)/L), F = Att + FFN with weights smooth in depth; gains: (layer, feature)."""
    path, layers, states = smooth_path(seed), len(gains), [random_tokens(seed) if start is None else start]
    for number, gain in enumerate(gains):
        u = states[-1]
        states.append(gain * on_sphere(u + TIME / layers * layer(path(number / layers))(u)))
    return states


def top_of(gain: Tensor) -> tuple[Tensor, float]:
    """v with GPv = μ₁v and |Pv| = √d μ₁, a fixed point of LN, and μ₂/μ₁. For gains g > 0."""
    d = len(gain)
    root = gain.sqrt()
    centre = torch.eye(d, dtype=gain.dtype) - 1 / d
    values, vectors = torch.linalg.eigh(root.unsqueeze(1) * centre * root)  # GP, made symmetric
    v = root * vectors[:, -1]
    return v * (math.sqrt(d) * values[-1] / (centre @ v).norm()), (values[-2] / values[-1]).item()


def power_limit(gain: Tensor, u0: Field) -> Field:
    """s_iv, s_i = sign(v·G⁻¹u_i(0)): where LN alone, again and again, takes every token."""
    v, _ = top_of(gain)
    return (u0 @ (v / gain)).sign().unsqueeze(-1) * v


def motion(states: Sequence[Field]) -> float:
    """The largest distance of a token from where it is at the end, over the second half of the depth, over √d."""
    late = torch.stack(list(states[len(states) // 2 :]))
    return ((late - late[-1]).norm(dim=-1).max() / math.sqrt(late.shape[-1])).item()


def gain_flow(seed: int, slopes: Tensor, steps: int = 64, *, along: bool = False) -> Field:
    """u(1) of u_i' = (I − u_iu_iᵀ/d)P(F_i + γu_i) from LN(u₀), γ the diagonal matrix of slopes.

    along: leave out the projection I − u_iu_iᵀ/d, for a control.
    """
    path = smooth_path(seed)

    def rate(u: Field, t: float = 0.0) -> Field:
        push = layer(path(t))(u) + slopes * u
        push = push - push.mean(dim=-1, keepdim=True)
        return push if along else push - u * (u * push).mean(dim=-1, keepdim=True)

    return solve(rate, on_sphere(random_tokens(seed)), steps=steps, dt=1 / steps, integrator=RK4()).final


# What is left of the identity


def identity_weight(equation: MasterEquation, dt: float, width: int = 4, tokens: int = 3) -> float:
    """w in u⁺ = w u + (the terms' networks): the Jacobian of one Euler step with every weight set to 0, read off.

    Raises ArithmeticError if that Jacobian is no multiple of the identity.

    >>> identity_weight(MasterEquation(Reaction(4, 8, leak=True)), dt=0.25)
    0.75
    """
    bare = copy.deepcopy(equation).double().requires_grad_(False)
    for weight in bare.parameters():
        weight.zero_()
    u = normal(0, "identity", size=(1, tokens, width))
    entries = jacobian(lambda v: Euler().step(bare, v, 0.0, dt), u).reshape(tokens * width, tokens * width)

    weight = entries.diagonal().mean().item()
    if not torch.allclose(entries, weight * torch.eye(len(entries), dtype=entries.dtype), atol=1e-12):
        raise ArithmeticError("without weights the step is no multiple of the identity: another term acts as well")
    return weight


def identity_path(u0: Tensor, pushes: Sequence[Tensor], dt: float, leaks: int = 2) -> list[Tensor]:
    """The parts of u^L = q^L u₀ + Δt Σ_ℓ q^{L−1−ℓ} G_ℓ, q = 1 − kΔt for k leaks: what each layer's push has become."""
    kept, layers = 1 - leaks * dt, len(pushes)
    return [kept**layers * u0, *(dt * kept ** (layers - 1 - n) * push for n, push in enumerate(pushes))]


# The dial at random weights

# κ of `dial_variance` for the stacks of `fresh_layer`: 5 for √2 ReLU(Wu), 2 for Wu, and for both (5 + 2)/2²
LENGTHS = {1: 5.0, 2: 7 / 4}


def dial_law(
    dt: float | Tensor, layers: int, operators: int = 1, ratio: float = 1.0, *, theta: float = 1.0
) -> float | Tensor:
    """ρ_L → (a/√(a² + kΔt²r²))^L, a = 1 − kθΔt, as the width grows, k operators with r = |G(u)|/|u|.

    >>> round(dial_law(0.5, 6), 3), dial_law(0.5, 6, operators=2), round(dial_law(0.5, 6, theta=0), 3)
    (0.125, 0.0, 0.512)
    """
    kept = 1 - operators * theta * dt
    return (kept / (kept**2 + operators * (ratio * dt) ** 2) ** 0.5) ** layers


def dial_variance(
    dt: float | Tensor, layers: int, operators: int = 1, lengths: float = 0.0, *, squares: float = 0.5
) -> float | Tensor:
    """n·Var(ρ_L) → (1 − ρ²) − Lρ²(β + ½β² − ¼κβ²), β = kΔt²/((1 − kΔt)² + kΔt²) = 1 − ρ^{2/L}, for Gaussian weights.

    lengths: κ, with the squared lengths of the k branches together known up to √(κ/n), relative; 0 if |φ(u)| = |u|.
    squares: the ½ in front of β².

    >>> dial_variance(1.0, 3), round(dial_variance(0.5, 1), 4)
    (1.0, 0.1875)
    """
    beta = operators * dt**2 / ((1 - operators * dt) ** 2 + operators * dt**2)
    kept = (1 - beta) ** layers
    return (1 - kept) - layers * kept * (beta + (squares - lengths / 4) * beta**2)


def dial_spread(
    dt: float | Tensor, layers: int, width: int, operators: int = 1, lengths: float = 0.0
) -> float | Tensor:
    """√(`dial_variance`/n): the standard deviation of ρ_L over fresh Gaussian weights of width n, as n → ∞."""
    variance = dial_variance(dt, layers, operators, lengths)
    return (variance * (variance > 0)) ** 0.5 / math.sqrt(width)  # next to Δt = 0 rounding makes it negative


def dial_draws(dt: float, layers: int, operators: int, width: int, draws: int, seed: int, lengths: str = "exact"):
    """ρ_L of u⁺ = (1 − kΔt)u + Δt Σ_i W_iφ_i(u), fresh Gaussian W: (draw,).

    Given the past Σ_i W_iφ_i(u) is a Gaussian vector, so no matrix is drawn. lengths: "exact" for |φ_i(u)| = |u|,
    "ReLU" for φ(u) = √2 ReLU(W'u), whose length follows from n Gaussian numbers.
    """
    generator = stream(seed, "dial", dt, layers, operators, width, lengths)

    def gaussian() -> Tensor:
        return torch.randn(draws, width, generator=generator, dtype=torch.float64)

    u0 = torch.zeros(draws, width, dtype=torch.float64)
    u0[:, 0] = 1
    u = u0
    for _ in range(layers):
        square = operators
        if lengths == "ReLU":
            square = sum(2 * gaussian().relu().square().mean(dim=-1, keepdim=True) for _ in range(operators))
        push = u.norm(dim=-1, keepdim=True) * (square / width) ** 0.5 * gaussian()
        u = (1 - operators * dt) * u + dt * push
    return torch.cosine_similarity(u, u0, dim=-1)


def relative_step(rho: float, layers: int) -> float:
    """s = √(ρ^(−2/L) − 1), the step relative to what is kept, for which (1 + s²)^(−L/2) = ρ.

    >>> round(relative_step(0.85, 5), 2)
    0.26
    """
    return math.sqrt(rho ** (-2 / layers) - 1)


def shared_law(dt: float, layers: int) -> float:
    """ρ_L for one Gaussian matrix in all layers: Wʲu₀ are orthogonal and of one length, so binomials add up."""
    kept = 1 - dt
    square = sum((math.comb(layers, j) * kept ** (layers - j) * dt**j) ** 2 for j in range(layers + 1))
    return kept**layers / math.sqrt(square)


def uncentred_law(dt: float, layers: int, s: float) -> float:
    """ρ_L for G = √2 ReLU(Wu), fresh W: G has the mean |u|/√(πn) in every entry; s = mean(u₀)/rms(u₀).

    With e the unit vector of equal entries, x = ⟨u, e⟩, p = ⟨u, u₀⟩, N = |u| and |u₀| = 1:
    x⁺ = (1−Δt)x + ΔtN/√π,  p⁺ = (1−Δt)p + ΔtNs/√π,  N⁺² = ((1−Δt)² + Δt²)N² + 2(1−Δt)ΔtNx/√π.
    """
    kept, push = 1 - dt, dt / math.sqrt(math.pi)
    x, p, size = s, 1.0, 1.0
    for _ in range(layers):
        after = math.sqrt((kept**2 + dt**2) * size**2 + 2 * kept * push * size * x)
        x, p, size = kept * x + push * size, kept * p + push * size * s, after
    return p / size


def fresh_layer(width: int, operators: int, seed: int, *names: object) -> MasterEquation:
    """Att(u) − u + FFN(u) − u for one token, or its second half, with fresh weights that keep lengths on average."""
    terms = [Interaction(width, leak=True, bias=False), Reaction(width, width, leak=True, bias=False)]
    made = MasterEquation(*terms[-operators:]).double().requires_grad_(False)
    generator = stream(seed, width, operators, *names)
    for name, weight in made.named_parameters():
        deviation = math.sqrt((2 if "inner" in name else 1) / width)  # ReLU throws half of the square away
        weight.normal_(std=deviation, generator=generator)
    return made


def fidelities(
    steps: Sequence[float], layers: int, width: int, operators: int, seed: int, *, theta: float = 1.0
) -> Tensor:
    """ρ_ℓ of one random token for every Δt, the same weights for all of them: (layer + 1, Δt)."""
    dt = torch.tensor(steps, dtype=torch.float64).reshape(-1, 1, 1)
    u0 = normal(seed, "input", size=(1, 1, width)).expand(len(steps), -1, -1)
    u, cosines = u0, [torch.ones(len(steps), dtype=torch.float64)]
    for number in range(layers):
        rate = fresh_layer(width, operators, seed, number)(u) + (1 - theta) * operators * u
        u = u + dt * rate  # Δt = 0 may be among the steps
        cosines.append(torch.cosine_similarity(u, u0, dim=-1).squeeze(-1))
    return torch.stack(cosines)


def _gaussian(width: int, seed: int, *names: object) -> Tensor:
    return normal(seed, "branch", *names, size=(width, width)) / math.sqrt(width)


# G(u) of layer ℓ at width n: the hypotheses of the law, all of them or all but one
BRANCHES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "all hypotheses": lambda u, seed, layer: (
        _gaussian(len(u), seed, layer, 2) @ torch.relu(math.sqrt(2) * _gaussian(len(u), seed, layer) @ u)
    ),
    "twice as long": lambda u, seed, layer: 2 * _gaussian(len(u), seed, layer) @ u,
    "not centred": lambda u, seed, layer: torch.relu(math.sqrt(2) * _gaussian(len(u), seed, layer) @ u),
    "same weights": lambda u, seed, layer: _gaussian(len(u), seed) @ u,
    "along u": lambda u, seed, layer: math.copysign(1, normal(seed, "coin", layer, size=(1,)).item()) * u,
}


def fidelity_with(branch: str, dt: float, layers: int, width: int, seed: int, start: Tensor | None = None) -> float:
    """ρ_L of u⁺ = (1 − Δt)u + ΔtG(u) for a branch of BRANCHES, from a Gaussian u₀ unless another is given."""
    u0 = normal(seed, "start", size=(width,)) if start is None else start
    u = u0
    for number in range(layers):
        u = (1 - dt) * u + dt * BRANCHES[branch](u, seed, number)
    return torch.cosine_similarity(u, u0, dim=0).item()


# P1's dictionary: space is position, time is depth. Diffusion is not attention, Δt is not a learning rate.

TOKENS, SAMPLES = 16, 64


def reach(rate: Rate, u: Field, token: int) -> Tensor:
    """‖∂rate_i/∂u_j‖ for one j and every i, Frobenius norm over features: who notices when token j moves? (token,)"""
    return torch.linalg.matrix_norm(jacobian(rate, u)[0, :, :, token, :])


def mode_growth(matrix: Tensor, time: float, tokens: int = TOKENS) -> Tensor:
    """‖e^{tλ_kD}‖ of every mode k of the grid, measured: how much diffusion with the matrix D amplifies it: (mode,)

    Each mode is sent through `Diffusion.exact` in every direction of feature space.
    """
    width = matrix.shape[0]
    modes = laplacian_modes(tokens)  # (token, mode)
    u = torch.einsum("ik,ab->kaib", modes, torch.eye(width, dtype=modes.dtype)).flatten(0, 1)  # mode · direction
    after = Diffusion(matrix).exact(u, time).view(tokens, width, tokens, width)
    return norm2(torch.einsum("ik,kaib->kba", modes, after))


def mode_law(matrix: Tensor, time: float, tokens: int = TOKENS) -> Tensor:
    """‖e^{tλ_kD}‖, by the matrix exponential: (mode,)"""
    rates = laplacian_eigenvalues(tokens).reshape(-1, 1, 1)
    return norm2(torch.linalg.matrix_exp(time * rates * matrix))


def torch_block(block: nn.TransformerEncoderLayer, u: Field) -> Field:
    """u ← u + Att(u), u ← u + FFN(u): a residual block without LayerNorm, from torch's own modules."""
    u = u + block.self_attn(u, u, u, need_weights=False)[0]
    return u + block.linear2(block.activation(block.linear1(u)))


def forward_bound(coefficient: float = 0.01) -> float:
    """2/|λ_max|: past this Δt explicit diffusion grows, whatever happens in training."""
    return Diffusion(coefficient).largest_step(TOKENS)


def features(dt: float, seed: int, coefficient: float = 0.01, steps: int = 40) -> tuple[Tensor, bool]:
    """X: the states after `steps` explicit steps of diffusion, (sample, token); and whether they grew."""
    u0 = 1 + normal(seed, "inputs", size=(SAMPLES, TOKENS, 1))
    run = solve(Diffusion(coefficient), u0, steps=steps, dt=dt)
    grew = run.status is Status.DIVERGED or run.final.norm() > u0.norm()
    return run.final.squeeze(-1), bool(grew)


def rate_bound(X: Tensor) -> float:
    """2/λ_max(XᵀX/m): past this learning rate gradient descent on ½ mean (Xw − y)² diverges."""
    return 2 / norm2(X.T @ X / len(X)).item()


def training_diverges(X: Tensor, rate: float, seed: int, steps: int = 200) -> bool:
    """Gradient descent of a linear readout on the features X: is the loss larger at the end than at the start?"""
    y, w = normal(seed, "targets", size=(len(X),)), torch.zeros(X.shape[1], dtype=X.dtype)
    first = (X @ w - y).square().mean()
    for _ in range(steps):
        w = w - rate * X.T @ (X @ w - y) / len(X)
    last = (X @ w - y).square().mean()
    return bool(~(last <= first))  # NaN counts as divergence
