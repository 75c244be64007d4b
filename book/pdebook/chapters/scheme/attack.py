"""Two adversaries against P1's explicit scheme: its stability condition and its error bound.  (P1 eq 21 and 24)

Stability. Printed: 2DΔt/Δx² + αΔt‖W_O‖ ≤ 1 keeps the states bounded. Corrected: a bound on one step in the norm
max_i|u_i|, if the weights of the step are not negative.
Error. Printed: C₁Δt^p + C₂Δx^q + C₃ε_att, without conditions. Corrected: smooth solutions, 2DΔt/Δx² ≤ 1 (< 1 at
absorbing ends, P1's own), p = 1, q = 2.
"""

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from pdebook.chapters.scheme import laws
from pdebook.evidence.adversary import SHRUNK, Start, Statement, attack, over_decades
from pdebook.evidence.systems import MATRICES, one_step
from pdelab.field import BOUNDARIES, laplacian
from pdelab.formulas import centres, longest, norm2, per_example
from pdelab.seeds import normal, stream
from pdelab.terms.diffusion import Diffusion

# One step.


def step(
    u, A, V, W, U, b, diffusion, leakage, outflow, ln_y, *, ends,
    value=1.0, reaction=1.0, forcing=1.0, kappa=1.0, exchange=1.0, reach=1.0,
) -> Tensor:  # fmt: skip
    """max|u⁺| ≤ (1 + y(‖V‖ − κ) + Δtρ − Δtc) max|u| + ΔtR₀ if x + yκ + Δtc ≤ 1, x = 2DΔt/Δx² and y = αΔt.

    R(z) = U tanh(Wz) + b, so ρ = ‖U‖‖W‖ and R₀ = |b|. diffusion, leakage and outflow give the shares of x, yκ and Δtc
    in 1, beside what is left over. reach: a factor of x that the condition does not know of.
    """
    shares = torch.stack([diffusion, leakage, outflow, torch.zeros_like(ln_y)]).softmax(dim=0)
    x, leak, out, y = *shares[:3], ln_y.exp()
    allowed = laws.step_bound(
        longest(u),
        diffusive=x,
        strength=y,
        value=value * norm2(V),
        kappa=kappa * leak / y,
        reaction=reaction * norm2(U) * norm2(W),
        forcing=forcing * b.norm(dim=-1).squeeze(-1),
        outflow=exchange * out,
    )

    x, leak, out, y = (per_example(share) for share in (reach * x, leak, out, y))
    after = one_step(
        u,
        diffusive=x,
        strength=y,
        V=V,
        A=A,
        kappa=leak / y,
        extra=lambda v: torch.tanh(v @ W.mT) @ U.mT + b - out * v,
        ends=ends,
    )
    return longest(after) / allowed


def lax(u, A, V, WO, W, U, diffusion, attention, ln_dt, *, ends, value=1.0, reaction=1.0, reach=1.0, steps=6) -> Tensor:
    """max|u(t)| ≤ e^{βt}max|u(0)|, β = α‖W_O W_V‖ + ρ, under eq 21: stable in the sense of Lax, whatever Δt.

    R(z) = U tanh(Wz), ρ = ‖U‖‖W‖; an exchange between layers may be part of it. diffusion and attention give the shares
    of 2DΔt/Δx² and αΔt‖W_O‖ in 1, beside what is left over. The score is ln of the growth in a few steps over βt;
    reach: a factor of D that eq 21 does not know of.
    """
    shares = torch.stack([diffusion, attention, torch.zeros_like(ln_dt)]).softmax(dim=0)
    x, y, dt = shares[0], shares[1] / norm2(WO), ln_dt.exp()
    both, start = WO @ V, longest(u)
    settings = {"diffusive": per_example(reach * x), "strength": per_example(y), "V": both, "A": A, "ends": ends}
    for _ in range(steps):
        u = one_step(u, extra=lambda v: per_example(dt) * torch.tanh(v @ W.mT) @ U.mT, **settings)
    rate = value * y * norm2(both) + reaction * dt * norm2(U) * norm2(W)
    return (longest(u) / start).log() / (steps * rate)


def small_steps(seed: int, **drawn: Tensor) -> Start:
    """Steps so small that e^{βΔt} is near 1 + βΔt; in two of three starts equal tokens that all matrices stretch.

    In the first attention rules, in the second the network.
    """
    drawn = over_decades(-1.5, 0.5, "u", *MATRICES)(seed, **drawn)
    drawn["attention"], drawn["ln_dt"] = drawn["attention"] - 4, drawn["ln_dt"] - 4
    u, eye = drawn["u"], torch.eye(drawn["V"].shape[-1], dtype=drawn["V"].dtype)
    for third, weak in enumerate(("ln_dt", "attention")):
        u[third::3] = 1 + 0.01 * u[third::3]
        for name, factor in {"V": 1.0, "WO": 1.0, "W": 0.02, "U": 50.0}.items():
            drawn[name][third::3] = factor * eye
        drawn[weak][third::3] -= 4
    return drawn


LEFT_OUT = ("absorbing", "reflecting", "outflow", "network")  # where `printed_condition` looks
THOUSANDFOLD = 1e3  # growth that is not taken for boundedness any more


def printed_condition(seed: int, *, where: str, systems: int = 200, steps: int = 200) -> Tensor:
    """States do not grow a thousandfold in 200 steps that meet eq 21: random D, α, W_V, W_O and Δt.

    where: "absorbing" (P1 eq 7) or "reflecting", the ends, with attention alone; "outflow", −Δt c u with Δt c up to 3,
    and "network", Δt U relu(Wu), which eq 21 does not mention, at absorbing ends and without values, W_V = 0.
    """
    if where not in LEFT_OUT:
        raise ValueError(f"where must be one of {', '.join(LEFT_OUT)}; not {where!r}")
    x, share, outflow = torch.rand(3, systems, generator=stream(seed, "printed"), dtype=torch.float64)
    output, value, A, W, U = (normal(seed, "printed", k, size=(systems, 2, 2)) for k in ("O", "V", "A", "W", "U"))
    dt = per_example((1 - x) * share / norm2(output))  # α = 1, so that x + αΔt‖W_O‖ ≤ 1

    extra = {
        "outflow": lambda u: -3 * per_example(outflow) * u,
        "network": lambda u: dt * torch.relu(u @ W.mT) @ U.mT,
    }
    settings = {
        "diffusive": per_example(x),
        "strength": dt,
        "V": output @ value * (where in BOUNDARIES),
        "A": A,
        "extra": extra.get(where),
        "ends": "reflecting" if where == "reflecting" else "absorbing",
    }
    grown = laws.growth_in_steps(
        lambda u: one_step(u, **settings).clamp(-1e30, 1e30), normal(seed, "printed", "u", size=(systems, 6, 2)), steps
    )
    return grown / THOUSANDFOLD


run = attack(
    "attack_scheme",
    {where: Statement(printed_condition, over={"where": (where,)}, printed=True) for where in LEFT_OUT}
    | {
        "step": Statement(
            step,
            {"u": "n d", **MATRICES, "b": "1 d", "diffusion": "", "leakage": "", "outflow": "", "ln_y": ""},
            [{"n": 4, "d": d, "1": 1} for d in (1, 2)],
            over={"ends": BOUNDARIES},
            start=over_decades(-1.5, 0.5, "u", *MATRICES, "b"),
            wrong={
                "κ larger": {"kappa": 1 / SHRUNK},
                "c larger": {"exchange": 1 / SHRUNK},
                "condition dropped": {"reach": 2.0},
            },
            shrink=("value", "reaction", "forcing"),
            batch=48,
        ),
        "lax": Statement(
            lax,
            {"u": "n d", **MATRICES, "WO": "d d", "diffusion": "", "attention": "", "ln_dt": ""},
            [{"n": 4, "d": d} for d in (1, 2)],
            over={"ends": BOUNDARIES},
            start=small_steps,
            wrong={"condition dropped": {"reach": 3.0}},
            shrink=("value", "reaction"),
            batch=24,
            steps=60,
        ),
    },
)


# The error.


def bound(
    ln_T, ln_rho, ln_value, mean, wave, ln_att, ratio, *, grid, sign,
    time=1.0, space=1.0, att=1.0, K=1.0,
) -> Tensor:  # fmt: skip
    """max|û − u| ≤ (½M_tΔt + D M_xΔx²/12 + αε_att)(e^{KT} − 1)/K, for an equation that is solved exactly.

    u_t = D u_xx + αv mean(u) + ρu has the solution m(t) + a e^{st} cos(kπx), m = m₀e^{(αv + ρ)t}, s = ρ − Dk²π².
    Attention to all alike is exact on cell centres; the simplified one adds ε_att with the sign of m₀.
    grid: cells, steps and k; sign: that of ρ; mean and wave: m₀ and a; ratio: the place of 2DΔt/Δx² in (0, 1).
    """
    cells, steps, number = grid
    T, rho, value, eps = ln_T.exp(), sign * ln_rho.exp(), ln_value.exp(), ln_att.exp()
    dt, dx, k = T / steps, 1 / cells, number * math.pi
    D = ratio.sigmoid() * dx**2 / (2 * dt)
    p, s = value + rho, rho - D * k**2

    top = wave.abs() * torch.exp(s.clamp(min=0) * T)  # the largest amplitude of the wave
    second = mean.abs() * p**2 * torch.exp(p.clamp(min=0) * T) + top * s**2
    allowed = laws.error_bound(K * (value + rho.abs()), time * second, space * top * k**4, D, 1.0, att * eps, T, dt, dx)

    T, dt, D, rho, value, p, s, mean, wave, eps = (
        per_example(v) for v in (T, dt, D, rho, value, p, s, mean, wave, eps)
    )
    shape = torch.cos(k * centres(cells)).unsqueeze(-1)  # (token, 1)

    def exact(t: Tensor) -> Tensor:
        return mean * torch.exp(p * t) + wave * torch.exp(s * t) * shape

    u, worst = exact(0 * T), torch.zeros_like(allowed)
    for n in range(steps):
        attended = value * u.mean(dim=1, keepdim=True) + eps * mean.sign()
        u = u + dt * (D * laplacian(u) + attended + rho * u)
        worst = torch.maximum(worst, longest(u - exact((n + 1) * dt)))
    return worst / allowed


def absorbing_bound(
    ln_T, ln_rho, ln_speed, hump, wave, ln_att, place, *, grid, sign, wide_step,
    time=1.0, space=1.0, ends=1.0, att=1.0, K=1.0,
) -> Tensor:  # fmt: skip
    """max|û − u| ≤ Δx²/8·max(1, r/(1 − 2r))·max|∂²u(ends)|e^{KT} and `error_bound` more, at P1's own, absorbing ends.

    u = (½h x(1 − x) + a sin kπx)e^{st} solves u_t = D u_xx + ρu + g(x, t), whose g is what is left; the simplified
    attention adds ε_att with the sign of h. grid: cells, steps and k; sign: that of ρ and s; hump and wave: h and a.
    r = DΔt/Δx² up to 1/3, or with wide_step from there to 0.45.
    """
    cells, steps, number = grid
    T, rho, s, eps = ln_T.exp(), sign * ln_rho.exp(), sign * ln_speed.exp(), ln_att.exp()
    dt, dx, k = T / steps, 1 / cells, number * math.pi
    r = 1 / 3 + (0.45 - 1 / 3) * place.sigmoid() if wide_step else place.sigmoid() / 3
    D = r * dx**2 / dt

    most = torch.exp(s.clamp(min=0) * T)
    second = s**2 * most * (hump.abs() / 8 + wave.abs())
    allowed = laws.absorbing_bound(
        K * rho.abs(),
        time * second,
        space * wave.abs() * k**4 * most,
        ends * hump.abs() * most,
        D,
        1.0,
        att * eps,
        T,
        dt,
        dx,
    )

    x = centres(cells).unsqueeze(-1)
    T, dt, D, rho, s, hump, wave, eps = (per_example(v) for v in (T, dt, D, rho, s, hump, wave, eps))
    bump, turn = hump * x * (1 - x) / 2, wave * torch.sin(k * x)
    u, worst = bump + turn, torch.zeros_like(allowed)
    left = s * (bump + turn) + D * (hump + k**2 * turn) - rho * (bump + turn)  # g = left · e^{st}
    for n in range(steps):
        u = u + dt * (D * laplacian(u, "absorbing") + rho * u + left * torch.exp(s * n * dt) + eps * hump.sign())
        worst = torch.maximum(worst, longest(u - (bump + turn) * torch.exp(s * (n + 1) * dt)))
    return worst / allowed


def one_at_a_time(seed: int, **drawn: Tensor) -> Start:
    """Of four starts one in which the ends rule and the time is long, one the steps, one the grid, one ε_att."""
    for name in ("ln_rho", "ln_speed", "ln_att"):
        drawn[name] = drawn[name] - 4
    drawn["ln_rho"][1::2] += 4
    for quarter, (T, place, hump, wave, speed, att) in enumerate(
        ((0, 3, 1, 1e-4, -8, -8), (0, -14, 1e-4, 1, 3, -12), (0, -1, 1e-4, 1, -8, -8), (0, -8, 1e-3, 1e-3, -8, 4))
    ):
        drawn["ln_T"][quarter::4] += T
        drawn["place"][quarter::4] += place
        drawn["hump"][quarter::4] *= hump
        drawn["wave"][quarter::4] *= wave
        drawn["ln_speed"][quarter::4] += speed
        drawn["ln_att"][quarter::4] += att
    return drawn


def barrier(b, place, *, wide_step, ends=1.0) -> Tensor:
    """|eⁿ| ≤ max(½, r/(2 − 4r))Δx²β/D for e⁺ = (I + DΔtΔ_N)e + Δt bⁿ with |bⁿ| ≤ β in the two end cells, 0 elsewhere.

    b: (step, two) before tanh; r as in `absorbing_bound`, but up to 0.49. In units of Δtβ the bound is
    max(1/(2r), 1/(2 − 4r)).
    """
    r = 1 / 3 + (0.49 - 1 / 3) * place.sigmoid() if wide_step else place.sigmoid() / 3
    b = torch.tanh(b)
    e = torch.zeros(len(b), 2, 1, dtype=b.dtype)
    for n in range(b.shape[1]):
        e = e + per_example(r / 4) * laplacian(e, "absorbing") + b[:, n].unsqueeze(-1)  # two cells: Δx² = ¼
    return longest(e) / (ends * laws.barrier(r) / (2 * r))


def steady_or_alternating(seed: int, **drawn: Tensor) -> Start:
    """Inputs of one sign, or of a sign that changes with the step and from end to end, in turn."""
    b = drawn["b"]
    flip = (-1.0) ** torch.arange(b.shape[1], dtype=b.dtype)
    b[::2] = 3 + 0.1 * b[::2]
    b[1::2] = 3 * flip.view(1, -1, 1) * torch.tensor([1.0, -1.0], dtype=b.dtype) + 0.1 * b[1::2]
    return drawn


def wide(seed: int, **drawn: Tensor) -> Start:
    """Rates and ε_att over decades; in every third start a slow wave is almost alone, and the grid makes the error."""
    for name, factor in {"ln_rho": 1.5, "ln_value": 1.5, "ln_att": 2.0}.items():
        drawn[name] = factor * drawn[name]
    for name, lower in {"ln_rho": 6, "ln_value": 6, "ln_att": 12, "ratio": 4}.items():
        drawn[name][::3] -= lower
    return drawn


# The next term of the expansion is smaller by a factor Δt or Δx, at these steps below 10 %. So orders down to 0.86 and
# 1.91 would pass.
SLACK = 1.1
ORDERS = {"time": 1, "space": 2, "attention": 1}


def order(seed: int, *, of: str, raised: int = 0, fields: int = 6) -> Tensor:
    """The error falls as refinement^−order, 1 in time, 2 in space, 1 in ε_att, for attention and network.

    raised: added to the order.
    """
    found = []
    for one in range(100 * seed, 100 * seed + fields):
        if of == "time":
            coarse, fine = laws.time_errors(one, (64, 128))
        elif of == "space":
            coarse, fine = laws.space_errors(one, (18, 54))
        else:
            fine, coarse = laws.attention_errors(one, (0.01, 0.02))[0]
        refined = 3 if of == "space" else 2
        found.append(refined ** (ORDERS[of] + raised) * fine / coarse / SLACK)
    return torch.tensor(found, dtype=torch.float64)


def absorbing_order(seed: int, *, ratio: float, raised: int = 0, fields: int = 3) -> Tensor:
    """The error falls as N⁻² at absorbing ends, at a fixed DΔt/Δx² < ½, for attention, network and an input g(x, t)."""
    pairs = [laws.absorbing_errors(one, (16, 32), ratio) for one in range(100 * seed, 100 * seed + fields)]
    return torch.tensor([2 ** (2 + raised) * fine / coarse / SLACK for coarse, fine in pairs], dtype=torch.float64)


def quadrature(seed: int, *, rules: Sequence[str] = ("midpoint", "trapezoid"), fields: int = 4) -> Tensor:
    """The error of attention falls as N⁻² if its integrals are taken with midpoints or with trapezoids."""
    found = []
    for rule, one in product(rules, range(100 * seed, 100 * seed + fields)):
        coarse, fine = (laws.quadrature_error(one, rule, n) for n in (16, 32))
        found.append(4 * fine / coarse / SLACK)
    return torch.tensor(found, dtype=torch.float64)


ENDS = ("absorbing", "reflecting")


def step_condition(seed: int, *, systems: int = 16) -> Tensor:
    """The error does not grow from 32 to 64 cells at 1.1 < 2DΔt/Δx² < 1.5: heat, a smooth start that has all modes.

    Half with absorbing ends (P1 eq 7), half reflecting. The error is that of exact arithmetic: `laws.heat_error`.
    """
    ratios, shares = torch.rand(2, systems, generator=stream(seed, "ratio"), dtype=torch.float64)
    starts = enumerate(zip((1.1 + 0.4 * ratios).tolist(), (0.3 + 0.4 * shares).tolist(), strict=True))
    pairs = [[laws.heat_error(cells, *start, ENDS[n % 2]) for cells in (32, 64)] for n, start in starts]
    return torch.tensor([fine / coarse for coarse, fine in pairs], dtype=torch.float64)


def jump(seed: int, *, averaged: bool = True, systems: int = 16) -> Tensor:
    """N² times the error does not double from 9 to 81 cells for a u₀ with a jump: heat, exact in time, both ends.

    u₀ is 1 before the jump and 0 after it; the scheme starts from its values at the centres or its averages over cells.
    """
    jumps = 0.2 + 0.6 * torch.rand(systems, generator=stream(seed, "jump"), dtype=torch.float64)
    pairs = [[n**2 * jump_error(n, at, ENDS[i % 2], averaged) for n in (9, 81)] for i, at in enumerate(jumps.tolist())]
    return torch.tensor([fine / (2 * coarse) for coarse, fine in pairs], dtype=torch.float64)


def jump_error(cells: int, at: float, ends: str, averaged: bool, T: float = 0.02) -> float:
    """√(mean of (û − u)²) at time T from u₀ = 1 before the jump and 0 after it, u by its Fourier series."""
    x, k = centres(cells), torch.arange(1, 200, dtype=torch.float64)
    turn = math.pi * k * at
    waves, c, mean = torch.sin, 1 - torch.cos(turn), 0.0
    if ends == "reflecting":
        waves, c, mean = torch.cos, torch.sin(turn), at
    exact = mean + waves(math.pi * torch.outer(x, k)) @ (2 * c / (k * math.pi) * torch.exp(-T * (k * math.pi) ** 2))

    start = ((at - x) * cells + 0.5).clamp(0, 1) if averaged else (x < at).double()
    u = Diffusion(1.0, boundary=ends).exact(start.view(1, -1, 1), T).flatten()
    return (u - exact).square().mean().sqrt().item()


run_error = attack(
    "attack_error",
    {
        "step": Statement(step_condition, printed=True),
        "jump": Statement(jump, over={"averaged": (False,)}, printed=True),
        "bound": Statement(
            bound,
            dict.fromkeys(("ln_T", "ln_rho", "ln_value", "mean", "wave", "ln_att", "ratio"), ""),
            over={"grid": ((8, 4, 1), (8, 16, 2), (16, 16, 1)), "sign": (1.0, -1.0)},
            start=wide,
            shrink=("time", "space", "att", "K"),
            batch=32,
            steps=80,
        ),
        **{
            f"order_{of}": Statement(order, over={"of": (of,)}, wrong={"one order higher": {"raised": 1}})
            for of in ORDERS
        },
        "absorbing_bound": Statement(
            absorbing_bound,
            dict.fromkeys(("ln_T", "ln_rho", "ln_speed", "hump", "wave", "ln_att", "place"), ""),
            over={"grid": ((4, 48, 1), (8, 8, 1)), "sign": (1.0, -1.0), "wide_step": (False, True)},
            start=one_at_a_time,
            shrink=("time", "space", "ends", "att", "K"),
            batch=24,
            steps=40,
        ),
        "barrier": Statement(
            barrier,
            {"b": "step two", "place": ""},
            [{"step": 60, "two": 2}],
            over={"wide_step": (False, True)},
            start=steady_or_alternating,
            shrink=("ends",),
            each=True,
            batch=16,
            steps=40,
        ),
        "order_absorbing": Statement(
            absorbing_order, over={"ratio": (0.2, 1 / 3, 0.45)}, wrong={"one order higher": {"raised": 1}}
        ),
        "quadrature": Statement(quadrature, wrong={"left endpoints": {"rules": ("left",)}}),
        "averages": Statement(jump, wrong={"values at centres": {"averaged": False}}),
    },
    slack=SLACK,
)
