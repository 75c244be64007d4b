"""Attention as an integral operator: kernel, quadrature, contraction, and tokens on a sphere.  (P2 eq 5, 19)

One head, without −u: a query q reads a(q) = ∫K(q, y) V u(y) dy, K(q, y) = e^{qᵀAu(y)} / ∫e^{qᵀAu(z)}dz. On tokens
u_j = u(x_j) both integrals become means, and their ratio is softmax attention. Layer after layer it brings the tokens
together; on the unit sphere tokens with equal angles follow one scalar equation.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.integrate import quad
from torch import Tensor
from torch.func import jvp

from pdebook.evidence.sphere import sphere_rate
from pdebook.evidence.systems import read
from pdelab.formulas import attention, attention_weights, centred, centres, diameter, longest, norm2
from pdelab.integrators import RK4, flow
from pdelab.seeds import normal, stream
from pdelab.solver import solve

COUNTS = (9, 27, 81, 243)  # odd, so that a jump at ½ falls in the middle of a cell
DRAWS = 256

Function = Callable[[Tensor], Tensor]  # of positions, (N,) → (N, feature)

# Kernel and quadrature


def kernel(u: Tensor, A: Tensor) -> Tensor:
    """K_att(x_i, x_j) = N p_ij, so that the midpoint rule gives ∫K_att(x_i, y) dy = 1: (…, token, token)."""
    return u.shape[-2] * attention_weights(u, A)


def gauss(nodes: int = 40) -> tuple[Tensor, Tensor]:
    """Places and weights on [0, 1] that integrate what is smooth on each half, to rounding."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = torch.from_numpy((x + 1) / 4), torch.from_numpy(w / 4)
    return torch.cat([x, x + 0.5]), torch.cat([w, w])


def smooth(x: Tensor) -> Tensor:
    """u(x) = (sin 3x, cos 2x): |u| ≤ √2, |u'| ≤ √13, |u''| ≤ √97."""
    return torch.stack([torch.sin(3 * x), torch.cos(2 * x)], dim=-1)


SMOOTH = {"R": math.sqrt(2), "first": math.sqrt(13), "second": math.sqrt(97)}


def jump(x: Tensor) -> Tensor:
    """The same, turned round from x = ½ on: smooth on each half, with a jump between them."""
    return torch.where((x < 0.5).unsqueeze(-1), smooth(x), -smooth(x))


def grid_errors(field: Function, A: Tensor, V: Tensor, counts: Sequence[int] = COUNTS, at: float = 0.3) -> list[float]:
    """|a_N(q) − a(q)| for q = u(at) and tokens u_j = u(x_j) at N cell centres, for each N."""
    q, exact = _exact_read(field, A, V, at)
    return [(read(q, field(centres(n)), A, V) - exact).norm().item() for n in counts]


def sample_errors(
    field: Function, A: Tensor, V: Tensor, seed: int, counts: Sequence[int] = COUNTS, at: float = 0.3
) -> list[float]:
    """√E|a_N(q) − a(q)|² for tokens at N independent, uniform places, the mean over 256 draws, for each N."""
    q, exact = _exact_read(field, A, V, at)
    errors = []
    for n in counts:
        places = torch.rand(DRAWS, n, generator=stream(seed, "places", n), dtype=torch.float64)
        squares = (read(q, field(places), A, V) - exact).square().sum(dim=-1)
        errors.append(squares.mean().sqrt().item())
    return errors


def _exact_read(field: Function, A: Tensor, V: Tensor, at: float) -> tuple[Tensor, Tensor]:
    """The query q = u(at), and a(q) by Gauss's rule."""
    q, (x, mass) = field(torch.tensor([at], dtype=torch.float64)), gauss()
    return q, read(q, field(x), A, V, mass)


def midpoint_bound(n: int, a, v, R, first, second) -> Tensor:
    """v e^{2aR²} [2R(aRu₂ + a²R²u₁²) + 2aRu₁² + u₂] / 24N², a = ‖A‖, v = ‖V‖, |q|, |u| ≤ R, |u'| ≤ u₁, |u''| ≤ u₂."""
    a, R = (torch.as_tensor(x, dtype=torch.float64) for x in (a, R))
    curved = 2 * R * (a * R * second + (a * R * first) ** 2) + 2 * a * R * first**2 + second
    return v * torch.exp(2 * a * R**2) * curved / (24 * n**2)


def sample_bound(n: int, a, v, R) -> Tensor:
    """v e^{2aR²} R / √N: bounds √E|a_N − a|² for N independent tokens with |u_j|, |q| ≤ R, a = ‖A‖, v = ‖V‖."""
    a, R = (torch.as_tensor(x, dtype=torch.float64) for x in (a, R))
    return v * torch.exp(2 * a * R**2) * R / math.sqrt(n)


# The slope of attention, and the states at which it is largest


def slope_at(attend: Function, u: Tensor, direction: Tensor) -> float:
    """max_i|δAtt_i| / max_j|δu_j| of any map of states (N, d) into states, in one direction."""
    _, change = jvp(attend, (u,), (direction,))
    return (longest(change) / longest(direction)).item()


def steepest(x: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """N tokens of length 1 in the plane, A with ‖A‖ = x, and a direction of slope nearly x + √(1 + x²), V = I.

    Token 0 is e₂ and the others are ±e₁, so that all their scores are 0; its own score is −x. N is odd.
    """
    side = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    zero, one = torch.zeros_like(side), torch.ones_like(side)
    first = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # token 0 and where it is pushed
    u = torch.cat([first[:1], torch.stack([side, zero], dim=-1)])
    push = torch.stack([one, -x * side], dim=-1) / math.hypot(1, x)
    return u, torch.diag(torch.tensor([x, -x], dtype=torch.float64)), torch.cat([first[1:], push])


def read_turned(u: Tensor, angles: Tensor, a: Tensor | float) -> Tensor:
    """What token 0 reads of the others with rotary positions, s_0j = a u_0ᵀR(α_j)u_j, V = I: (…, N, 2) → (…, 1, 2).

    angles: (…, N − 1), one for each of the others.
    """
    query, keys = u[..., :1, :], u[..., 1:, :]
    turned = torch.stack([-keys[..., 1], keys[..., 0]], dim=-1)
    turned = angles.cos().unsqueeze(-1) * keys + angles.sin().unsqueeze(-1) * turned
    scores = torch.as_tensor(a, dtype=u.dtype)[..., None, None] * (query @ turned.mT)
    return scores.softmax(dim=-1) @ keys


def turned_state(phi: float, x: float) -> tuple[Tensor, Tensor, Tensor]:
    """Three tokens of length 1, two angles and a direction of slope √(1 + 2x cos φ + x²) + x sin φ with a = x.

    The angles are those of positions 0, 1, 2 that turn by θ = 2φ − π each, with W_QᵀW_K a rotation by π − 3φ.
    """
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    angles = torch.tensor([-phi, phi - math.pi], dtype=torch.float64)
    along, across = 1 + x * math.cos(phi), x * math.sin(phi)
    direction = torch.tensor([[0.0, -1.0], [along, across], [along, -across]], dtype=torch.float64)
    return u, angles, torch.nn.functional.normalize(direction, dim=-1)


def turned_slope(x: float) -> tuple[float, float]:
    """The largest √(1 + 2x cos φ + x²) + x sin φ, and its φ: above x + √(1 + x²), which is its value at φ = π/2."""
    phi = np.linspace(0, math.pi / 2, 2001)
    slopes = np.sqrt(1 + 2 * x * np.cos(phi) + x**2) + x * np.sin(phi)
    return slopes.max().item(), phi[slopes.argmax()].item()


# Random matrices


def matrices(seed: int, width: int = 2, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random A and V with spectral norms `size` and 1."""
    A, V = (normal(seed, name, size=(width, width)) for name in "AV")
    return size * A / norm2(A), V / norm2(V)


def orthogonal(seed: int, *names: object, width: int) -> Tensor:
    """A random orthogonal matrix, uniform among them all."""
    Q, R = torch.linalg.qr(normal(seed, *names, size=(width, width)))
    return Q * R.diagonal().sign()  # or the result would not be uniform


def largest_growth(matrix: Tensor) -> float:
    """max Re λ over the eigenvalues: the rate at which the fastest mode of u' = Mu grows."""
    return torch.linalg.eigvals(matrix).real.max().item()


# Contraction and collapse


def of_heads(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """Σ_h Att_h(u), A and V (…, head, d, d)."""
    return attention(u.unsqueeze(-3), A, V).sum(dim=-3)


def differences_of_heads(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """Σ_h Att_h(u) − 1V_hμ: the same up to one vector for all tokens, without its cancellation."""
    return (attention_weights(u.unsqueeze(-3), A) @ centred(u).unsqueeze(-3) @ V.mT).sum(dim=-3)


def diameters_along(rate: Function, u: Tensor, times: Sequence[float]) -> np.ndarray:
    """diam(u(t)) at each of the times, from u (1, N, d) at the first of them, by RK4."""
    sizes = [diameter(u).item()]
    for T in np.diff(times).tolist():
        u = flow(rate, u, T=T, steps=max(8, int(20 * T)))
        sizes.append(diameter(u).item())
    return np.array(sizes)


def speeds(u: Tensor, A: Tensor, V: Tensor, layers: int, *times: Sequence[float]) -> list[np.ndarray]:
    """The diameter layer by layer for attention alone; at times under u' = Att(u) − u; at others under u' = −Att(u)."""
    state, alone = u, [diameter(u).item()]
    for _ in range(layers):
        state = differences_of_heads(state, A, V)
        alone.append(diameter(state).item())
    leaky = diameters_along(lambda w: of_heads(w, A, V) - w, u, times[0])
    kept = diameters_along(lambda w: -of_heads(w, A, V), u, times[1])
    return [np.array(alone), leaky, kept]


def cubic_bound(delta: float, layers: Sequence[int], w: float) -> np.ndarray:
    """δ_ℓ ≤ (√(w/4) δ_0)^{3^ℓ} / √(w/4), w = Σ_h a_hv_h: attention alone."""
    root = math.sqrt(w / 4)
    return (root * delta) ** (3.0 ** np.asarray(layers)) / root


def algebraic_bound(delta: float, t: np.ndarray, w: float) -> np.ndarray:
    """δ(t) ≥ δ_0/√(1 + ½w δ_0² t): with a skip connection."""
    return delta / np.sqrt(1 + w * delta**2 * t / 2)


def diameters(u: Tensor, A: Tensor, V: Tensor, layers: int) -> list[float]:
    """diam(u), diam(Att(u)), diam(Att(Att(u))), …: attention alone, the same weights in every layer."""
    values = [diameter(u).item()]
    for _ in range(layers):
        u = attention(u, A, V)
        values.append(diameter(u).item())
    return values


def causal_exponent(u: Tensor, A: Tensor) -> Tensor:
    """b = ‖A‖ max|u_i| diam(u): no score of a token is further than that from its score with the first token."""
    return norm2(A) * longest(u) * diameter(u)


def causal_factor(u: Tensor, A: Tensor) -> Tensor:
    """1 − 1/(1 + (N−1)e^b): what causal attention with V = I leaves of max_k|u_k − u_0|."""
    return torch.sigmoid(causal_exponent(u, A) + math.log(u.shape[-2] - 1))  # the same, and no overflow


def two_leaders(n: int, size: float = 1e-3, sharp: float = 50.0) -> tuple[Tensor, Tensor, Tensor]:
    """N tokens, A and V with ‖V‖ = 1, for which attention multiplies the spread by nearly √(N/2).

    A token is (value, address). Two leaders have the values ±1, all others 0; half of these turn to each leader, by an
    address that is too small to count in the spread.
    """
    side = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    value, address = torch.zeros_like(side), 0.1 * size * side
    value[:2], address[:2] = side[:2], size * side[:2]

    A = torch.diag(torch.tensor([0.0, sharp / (0.1 * size**2)], dtype=torch.float64))
    V = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    return torch.stack([value, address], dim=-1), A, V


def share(u: Tensor) -> Tensor:
    """√N|μ| / ‖u‖: the cosine between a state (token, feature) and the state of equal tokens 1μ."""
    return math.sqrt(u.shape[-2]) * u.mean(dim=-2).norm(dim=-1) / u.flatten(-2).norm(dim=-1)


# On the sphere


def equal_angles(n: int, gamma: float | Tensor) -> Tensor:
    """n unit vectors in Rⁿ with ⟨u_i, u_j⟩ = γ for all i ≠ j, −1/(n−1) ≤ γ ≤ 1: (…, n, n).

    They are the rows of the root of their Gram matrix, √((1−γ)I + γ11ᵀ) = √(1−γ) (I − 11ᵀ/n) + √(1+(n−1)γ) 11ᵀ/n.
    """
    gamma = torch.as_tensor(gamma, dtype=torch.float64)[..., None, None]
    if not (gamma >= -1 / (n - 1)).all() or not (gamma <= 1).all():
        raise ValueError(f"gamma must lie between −1/(n−1) = {-1 / (n - 1):.3g} and 1 for {n} tokens")
    mean = torch.full((n, n), 1 / n, dtype=torch.float64)
    rest = torch.eye(n, dtype=torch.float64) - mean
    return (1 - gamma).sqrt() * rest + (1 + (n - 1) * gamma).clamp(min=0).sqrt() * mean


def angle_law(gamma, beta, n: int, sign: float = 1.0) -> Tensor:
    """γ' = ±2e^{βγ}(1−γ)(1 + (n−1)γ) / (e^β + (n−1)e^{βγ})."""
    gamma, beta = (torch.as_tensor(x, dtype=torch.float64) for x in (gamma, beta))
    weight = 1 / (torch.exp(beta * (1 - gamma)) + n - 1)  # of one other token
    return sign * 2 * weight * (1 - gamma) * (1 + (n - 1) * gamma)


def angle_rate(u: Tensor, beta, sign: float = 1.0) -> Tensor:
    """d⟨u_1, u_2⟩/dt under the flow on the sphere: (…,)."""
    rate = sphere_rate(u, beta, sign)
    return (rate[..., 0, :] * u[..., 1, :] + u[..., 0, :] * rate[..., 1, :]).sum(dim=-1)


def waiting_time(beta: float, n: int, end: float = 0.9) -> float:
    """∫_0^end dγ/γ' = ½∫_0^end (e^{β(1−γ)} + n − 1) / ((1−γ)(1 + (n−1)γ)) dγ: from right angles to the cosine `end`."""
    return quad(lambda gamma: 1 / angle_law(gamma, beta, n).item(), 0, end, epsrel=1e-10, limit=200)[0]


def follow_tokens(u0: Tensor, beta: float, times: Sequence[float], steps: int, sign: float = 1.0) -> list[Tensor]:
    """The tokens (n, d) at evenly spaced times 0, …, T, `steps` steps of RK4 between two of them."""
    return [u[0] for u in _at_times(lambda u: sphere_rate(u, beta, sign), u0.unsqueeze(0), times, steps)]


def follow_law(gamma: float, beta: float, n: int, times: Sequence[float], steps: int, sign: float = 1.0) -> list[float]:
    """γ at the same times, from the scalar law alone."""
    start = torch.tensor([[[gamma]]], dtype=torch.float64)
    return [g.item() for g in _at_times(lambda g: angle_law(g, beta, n, sign), start, times, steps)]


def _at_times(rate: Function, start: Tensor, times: Sequence[float], steps: int) -> tuple[Tensor, ...]:
    run = solve(rate, start, steps=steps * (len(times) - 1), dt=times[1] / steps, integrator=RK4())
    return run.states[::steps]


def on_circle(angles: Tensor) -> Tensor:
    """(cos θ, sin θ): (…,) → (…, 2)."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def angles_of(states: Sequence[Tensor]) -> Tensor:
    """The angles of tokens on the circle, followed without jumps: (time, token)."""
    turn = torch.stack([torch.atan2(u[:, 1], u[:, 0]) for u in states])
    step = torch.remainder(turn.diff(dim=0) + math.pi, 2 * math.pi) - math.pi  # no token turns by π between two times
    return torch.cat([turn[:1], turn[:1] + step.cumsum(dim=0)])
