"""An adversary against the laws of diffusion: random search, then gradient ascent.  (P2 eq 7-8; P1 eq 20)

Inequalities, each as a ratio that may not pass 1:

- taylor: |Σp V u(y) − Vu − V(m₁u' + ½m₂u'')| over ‖V‖ ‖u'''‖_∞ m̄₃/6, for any weights and for those of attention;
- step: the grid's own limit 2/|λ_max| over the step at which a given field begins to grow;
- gaussian_low, gaussian_high: the second moment of a kernel of sinusoidal positions between those of two Gaussians,
  as a ratio of the constants in their exponents; gaussian_high_spread: the same where tokens are spread evenly;
- backward: e^{s|Re λ|} over ‖e^{−sD}‖ for a matrix D with an eigenvalue λ, Re λ < 0.

Exact laws, each with a wrong law that the same search breaks: the feed-forward network has no block between two tokens
(attention has), and the diffusivity of attention is the sum of two parts (one part alone is not enough). The law
D ≈ Vτ/2|P'|² is asymptotic; the search breaks its hypotheses one at a time.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from pdebook.chapters.diffusion import position_kernel
from pdebook.chapters.diffusion.diffusivity import attention_diffusivity
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import BOUNDARIES, laplacian
from pdelab.formulas import centres, norm2
from pdelab.metrics.diffusivity import diffusivity, largest_off_diagonal
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal, stream
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

Module = TypeVar("Module", bound=nn.Module)

GRIDS = (4, 5, 8, 9)
TURNS = (1.0, 2.0, 3.0)  # Z, the largest ω|r|
NEAR_LAW = (0.9, 1.1)  # m₂|P'|²/τ within ten per cent of 1


def drawn(build: Callable[[], Module], seed: int) -> Module:
    """build() with weights that follow from the seed alone, in double precision and not to be trained."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return build().double().requires_grad_(False)


def taylor_ratio(x: Tensor, y: Tensor, p: Tensor, c: Tensor, V: Tensor) -> Tensor:
    """|remainder| / (‖V‖ ‖u'''‖_∞ m̄₃/6) of u(y) = Σ_k c_k y^k, k ≤ 4; u''' is linear, so |u'''| is largest at an end.

    x (batch, 1), y and p (batch, token), c (batch, 5, feature), V (batch, d, d).
    """

    def at(z: Tensor, derivative: int = 0) -> Tensor:
        """The derivative of u at z: (batch, token, feature)."""
        powers = range(derivative, 5)
        factors = [math.perm(k, derivative) for k in powers]
        terms = torch.stack([f * z ** (k - derivative) for f, k in zip(factors, powers, strict=True)], dim=-1)
        return terms @ c[:, derivative:]

    r = (y - x).unsqueeze(-1)
    first, second, third = ((p.unsqueeze(-1) * r**k).sum(dim=1) for k in (1, 2, 3))
    third = (p.unsqueeze(-1) * r.abs() ** 3).sum(dim=1)
    mean = (p.unsqueeze(-1) * (at(y) - at(x))).sum(dim=1)
    rest = mean - first * at(x, 1)[:, 0] - second / 2 * at(x, 2)[:, 0]  # (batch, feature)
    rest = (V @ rest.unsqueeze(-1)).squeeze(-1).norm(dim=-1)
    ends = torch.stack([at(torch.full_like(x, e), 3)[:, 0].norm(dim=-1) for e in (0.0, 1.0)]).amax(dim=0)
    allowed = norm2(V) * ends * third.squeeze(-1) / 6
    return torch.where(third.squeeze(-1) > 1e-4, rest / allowed, torch.zeros_like(rest))  # below, rounding rules


def attack_taylor(seed: int, batch: int = 64, steps: int = 150, tokens: int = 6, width: int = 2) -> Tensor:
    """The worst ratio of each start: weights of any kind, and weights that attention computes from the same field."""
    x, y, p, c, V = (
        normal(seed, "taylor", k, size=size)
        for k, size in {
            "x": (batch, 1),
            "y": (batch, tokens),
            "p": (batch, tokens),
            "c": (batch, 5, width),
            "V": (batch, width, width),
        }.items()
    )

    def free(x, y, p, c, V):
        return taylor_ratio(x.sigmoid(), y.sigmoid(), p.softmax(dim=-1), c, V)

    grid = centres(tokens).expand(batch, tokens)

    def by_attention(c, A, V):
        """Token 0 looks at all tokens with scores u₀ᵀAu_j; the expansion holds for the weights that it then has."""
        u = torch.stack([grid**k for k in range(5)], dim=-1) @ c
        p = (u[:, :1] @ A @ u.transpose(1, 2)).squeeze(1).softmax(dim=-1)
        return taylor_ratio(grid[:, :1], grid, p, c, V)

    A = normal(seed, "taylor", "A", size=(batch, width, width))
    return torch.cat([ascend(free, x, y, p, c, V, steps=steps), ascend(by_attention, c, A, V, steps=steps)])


def step_ratio(u: Tensor, boundary: str) -> Tensor:
    """(2/|λ_max|) / (2⟨u, −Δu⟩/|Δu|²): |u + ΔtΔu| passes |u| as soon as Δt passes the denominator. u (batch, token)."""
    second = laplacian(u.unsqueeze(-1), boundary).squeeze(-1)
    begins = -2 * (u * second).sum(-1) / second.square().sum(-1)
    return Diffusion(1.0, boundary).largest_step(u.shape[1]) / begins


def attack_step(seed: int, batch: int = 8, steps: int = 200) -> tuple[Tensor, Tensor]:
    """The worst ratio of each start on grids of several sizes and ends; and against the rule Δx²/2, the worst per grid.

    The second is (boundary, grid): cos²(π/2N) where the grid does not hold the wave that alternates, else 1.
    """
    found, rule = [], []
    for boundary in BOUNDARIES:
        for n in GRIDS:
            u = normal(seed, "step", boundary, n, size=(batch, n))
            worst = ascend(lambda v, b=boundary: step_ratio(v, b), u, steps=steps)
            found.append(worst)
            rule.append(worst.max() / (2 * n**2 * Diffusion(1.0, boundary).largest_step(n)))
    return torch.cat(found), torch.stack(rule).reshape(len(BOUNDARIES), len(GRIDS))


def equal_gaussian(r: Tensor, m2: Tensor, tau: Tensor) -> Tensor:
    """The g with G(g) = m₂: the Gaussian on the same tokens that spreads as much. r (batch, token), m₂ and τ (batch,).

    G falls with g if not all |r_j| are equal, so m₂ ≥ G(g) says that this is at most g. Bisection for log g, then one
    step of Newton's method, which carries the gradient.
    """
    with torch.no_grad():
        low, high = (torch.full_like(m2, end) for end in (-20.0, 20.0))
        for _ in range(60):
            middle = (low + high) / 2
            narrow = position_kernel.gaussian_moment(r, middle.exp().unsqueeze(-1), tau.unsqueeze(-1)) < m2
            low, high = torch.where(narrow, low, middle), torch.where(narrow, middle, high)
        g = ((low + high) / 2).exp()
        q = (-g.unsqueeze(-1) * r**2 / (2 * tau.unsqueeze(-1))).softmax(dim=-1)
        second = (q * r**2).sum(-1)
        falls = ((q * r**4).sum(-1) - second**2) / (2 * tau)  # −dG/dg
    moment = position_kernel.gaussian_moment(r, g.unsqueeze(-1), tau.unsqueeze(-1))
    return g + (moment - m2) / falls


def kernel_ratios(omega: Tensor, share: Tensor, r: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """γ/g and g(sin Z/Z)/γ with G(γ) = m₂ and Z = max ω|r| < π: both at most 1.

    ω and share a² (batch, pair), r (batch, token), τ (batch,). The ratio compares the constants inside G and not the
    moments: these are equal, whatever the weights, where all |r_j| are.
    """
    score = torch.einsum("bjm,bm->bj", torch.cos(r.unsqueeze(-1) * omega.unsqueeze(1)), share) / tau.unsqueeze(-1)
    m2 = (score.softmax(dim=-1) * r**2).sum(-1)
    g = (share * omega.square()).sum(dim=-1)
    Z = omega.amax(dim=-1) * r.abs().amax(dim=-1)
    found = equal_gaussian(r, m2, tau)
    return found / g, g * torch.sin(Z) / Z / found


def kernel_tokens(seed: int, batch: int, inner: float) -> Tensor:
    """Seven tokens on either side at distances from `inner` to 1, the ends of that range among them: (batch, token)."""
    distance = inner + (1 - inner) * torch.rand(batch, 7, generator=stream(seed, "tokens"), dtype=torch.float64)
    distance[:, 0], distance[:, 1] = inner, 1.0
    return distance * normal(seed, "sides", size=(batch, 7)).sign()


def attack_kernel(seed: int, batch: int = 66, steps: int = 150) -> dict[str, Tensor]:
    """The worst of either ratio for Z = 1, 2, 3 (a third of the batch each); frequencies, shares and width are free.

    The tokens stay where they are: spread over 0.1 ≤ |r| ≤ 1, and for the high bound also in 0.998 ≤ |r| ≤ 1, where the
    bound is sharp. The width of the Gaussian in r² is kept within 1/20 to 1 of the range of r², so that no token has
    all the weight and the weights are not all equal.
    """
    omega, share, width = (
        normal(seed, "kernel", k, size=size) for k, size in {"ω": (batch, 3), "a": (batch, 3), "w": (batch,)}.items()
    )
    Z = torch.tensor(TURNS, dtype=torch.float64).repeat_interleave(-(-batch // len(TURNS)))[:batch]

    def ratios(r, which, omega, share, width):
        omega, share = omega.sigmoid(), share.softmax(dim=-1)
        omega = Z.unsqueeze(-1) * omega / omega.amax(dim=-1, keepdim=True)
        reach = (r**2).amax(dim=-1) - (r**2).amin(dim=-1)
        g = (share * omega.square()).sum(dim=-1) * (torch.sin(Z) / Z if which else 1)
        return kernel_ratios(omega, share, r, g * reach * (0.05 + 0.95 * width.sigmoid()))[which]

    spread, outer = kernel_tokens(seed, batch, 0.1), kernel_tokens(seed, batch, 0.998)
    kinds = {"gaussian_low": (spread, 0), "gaussian_high_spread": (spread, 1), "gaussian_high": (outer, 1)}
    return {
        name: ascend(lambda *free, r=r, k=k: ratios(r, k, *free), omega, share, width, steps=steps)
        for name, (r, k) in kinds.items()
    }


def attack_backward(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    """e^{s|Re λ|}/‖e^{−sD}‖ for the lowest eigenvalue λ of D, Re λ < 0 and s > 0: at most 1."""
    D, s = normal(seed, "backward", "D", size=(batch, 3, 3)), normal(seed, "backward", "s", size=(batch,))

    def score(D, s):
        lowest, s = torch.linalg.eigvals(D).real.amin(dim=-1), s.exp()
        grown = norm2(torch.linalg.matrix_exp(-s.view(-1, 1, 1) * D))
        return torch.where(lowest < 0, torch.exp(-lowest * s) / grown, torch.zeros_like(s))

    return ascend(score, D, s, steps=steps, rate=0.02)


def positive_trace_but_backward(seed: int, batch: int = 256) -> Tensor:
    """Among random 3×3 matrices of positive trace: True where an eigenvalue is negative all the same."""
    D = normal(seed, "trace", size=(batch, 3, 3))
    D = D * D.diagonal(dim1=1, dim2=2).sum(-1).sign().view(-1, 1, 1)
    return torch.linalg.eigvals(D).real.amin(dim=-1) < 0


def attack_formula(seed: int, batch: int = 4, draws: int = 8) -> tuple[Tensor, Tensor]:
    """Relative error of D = values + scores, and of the values alone, for random attention on random fields."""
    full, part = [], []
    for draw in range(draws):
        term = drawn(lambda k=draw: Interaction(6, 1 + k % 3, causal=k % 2 == 1), 1000 * seed + draw)
        u = 2 * normal(seed, "formula", draw, size=(batch, 7, 6))
        measured, (values, scores) = diffusivity(jacobian(term, u)), attention_diffusivity(term, u)
        full.append((values + scores - measured).norm() / measured.norm())
        part.append((values - measured).norm() / measured.norm())
    return torch.stack(full), torch.stack(part)


def attack_locality(seed: int, draws: int = 8) -> tuple[Tensor, Tensor]:
    """The largest Jacobian entry between two tokens: of u ↦ FFN(u + P) with large weights, and of attention."""
    ffn, attention = [], []
    for draw in range(draws):
        kind, number = ("relu", "gelu", "tanh")[draw % 3], 1000 * seed + draw
        terms = drawn(lambda k=kind: nn.ModuleList([Reaction(6, 24, activation=k), Interaction(6, 2)]), number)
        u, P = (10 ** (draw % 3) * normal(seed, "local", k, draw, size=(1, 8, 6)) for k in "uP")
        for found, term in zip((ffn, attention), terms, strict=True):
            found.append(largest_off_diagonal(jacobian(lambda v, f=term, P=P: f(v + P), u)))
    return torch.stack(ffn), torch.stack(attention)


def law_ratios(seed: int, kind: str, batch: int = 32) -> Tensor:
    """m₂|P'|²/τ of random sinusoidal positions with one hypothesis broken, or none: about 1 where the law holds."""
    found = []
    for draw in range(batch):
        number = 1000 * seed + draw
        scale = 1 + 3 * torch.rand(1, generator=stream(seed, kind, draw), dtype=torch.float64)
        omega = scale * position_kernel.spread_frequencies(number)
        if kind == "varying length":
            found.append(position_kernel.varying_length(number, 2048))
            continue
        if kind == "recurring":
            omega = (1 + scale.floor()) * position_kernel.commensurate_frequencies()
        tokens = 64 if kind == "coarse" else 2048
        tau = 1.0 if kind == "wide" else position_kernel.TAU
        x = centres(tokens)
        width = (tau / omega.square().mean().item()) ** 0.5
        i = round(width * tokens) if kind == "near the end" else tokens // 2
        P = position_kernel.encode(x, omega)
        m2 = position_kernel.second_moment(x - x[i], (P @ P[i] / tau).softmax(dim=-1))
        found.append(m2 * omega.square().mean().item() / tau)
    return torch.tensor(found, dtype=torch.float64)


BROKEN = ("recurring", "coarse", "wide", "varying length", "near the end")


def off_the_law(ratios: Tensor) -> int:
    return int(((ratios < NEAR_LAW[0]) | (ratios > NEAR_LAW[1])).sum())


@experiment("attack_diffusion", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the laws of diffusion: Taylor, step, Gaussians, backward heat, and exact laws."""
    step, rule = attack_step(seed)
    full, part = attack_formula(seed)
    ffn, attention = attack_locality(seed)
    kept = law_ratios(seed, "none")
    broken = {kind: off_the_law(law_ratios(seed, kind)) for kind in BROKEN}
    return attack_result(
        "attack_diffusion",
        scale,
        seed,
        corrected={
            "taylor": attack_taylor(seed),
            "step": step,
            **attack_kernel(seed),
            "backward": attack_backward(seed),
        },
        figures={
            "formula_error": full.max().item(),
            "ffn_off_diagonal": ffn.max().item(),
            "law_attempts": len(kept),
            "law_off_with_hypotheses": off_the_law(kept),
            **{f"law_off_{kind}": count for kind, count in broken.items()},
        },
        controls={
            "values_alone_error": part.min().item(),
            "attention_off_diagonal": attention.min().item(),
            "grids_that_never_reach_the_rule": int((rule < 0.99).sum()),
            "positive_trace_but_backward": int(positive_trace_but_backward(seed).sum()),
        },
        configuration={"grids": list(GRIDS), "near_law": list(NEAR_LAW), "tau": position_kernel.TAU},
    )
