import functools
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import (
    INTEGRATORS,
    SEQUENCES,
    WIDTH,
    Mixing,
    assert_padding_changes_nothing,
    equation,
    field,
    layered,
    padded,
    seeded,
)
from torch.utils.checkpoint import checkpoint

from pdelab import (
    RK4,
    Diffusion,
    Diverged,
    Euler,
    Interaction,
    Layered,
    LieEuler,
    MasterEquation,
    PreNorm,
    Reaction,
    Status,
    Strang,
    Trajectory,
    solve,
    transformer,
)


def one(value=1.0, **options):
    return torch.full((1, 1, 1), value, dtype=torch.float64, **options)


def test_euler_converges_at_first_order_to_the_exponential():
    errors = [abs(solve(lambda u, t: -u, one(), steps=n, dt=1 / n).final.item() - math.exp(-1)) for n in (64, 128)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(Euler.order, abs=0.02)


def test_the_rate_is_given_the_time_of_its_step():
    run = solve(lambda u, t: torch.full_like(u, t), torch.zeros(1, 1, 1), steps=4, dt=0.5)
    assert run.times == (0.0, 0.5, 1.0, 1.5, 2.0)
    assert run.final.item() == pytest.approx(0.5 * (0 + 0.5 + 1 + 1.5))
    assert run.status is Status.FINISHED
    assert run.stopped_at is None
    assert len(run.states) == 5


@given(steps=st.integers(1, 40), dt=st.floats(1e-3, 10))
def test_times_do_not_add_up_rounding(steps, dt):
    run = solve(torch.zeros_like, one(), steps=steps, dt=dt)
    assert run.times == tuple(k * dt for k in range(steps + 1))


class Decay(torch.nn.Module):
    def forward(self, u):
        return -u


FUNCTIONS = {
    "f(u)": lambda u: -u,
    "f(u, t)": lambda u, t: -u,
    "f(u, t, mask)": lambda u, t, mask: -u,
    "f(u, t, mask=None)": lambda u, t, mask=None: -u,
    "f(u, time)": lambda u, time: -u,
    "f(u, t=0)": lambda u, t=0: -u,
    "f(u) with a setting": lambda u, rate=1.0: -rate * u,
    "built in": torch.neg,
    "partial": functools.partial(torch.mul, -1.0),
    "module": Decay(),
    "term": Mixing(-torch.eye(1)),
    "equation": MasterEquation(Mixing(-torch.eye(1))),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_rate_may_be_written_in_any_of_these_ways(f):
    assert [u.item() for u in solve(f, one(), steps=2, dt=0.5).states] == [1.0, 0.5, 0.25]


def test_a_setting_is_not_taken_for_the_time():
    run = solve(lambda u, rate=2.0: -rate * u, one(), steps=1, dt=0.5)
    assert run.final.item() == 0


def test_a_function_that_takes_the_mask_gets_it():
    u, mask = padded(fill=0.0)
    seen = []
    solve(lambda u, t, mask: seen.append(mask) or torch.zeros_like(u), u, steps=2, dt=0.1, mask=mask)
    assert all(given is mask for given in seen)


def test_padding_changes_nothing_whatever_it_holds():
    u, mask = padded(fill=math.nan)
    with torch.no_grad():
        run = solve(equation(), u, steps=3, dt=0.1, mask=mask)
        alone = [solve(equation(), s, steps=3, dt=0.1) for s in SEQUENCES]
    assert run.mask is mask
    for k in range(4):
        assert_padding_changes_nothing(run.states[k], mask, [s.states[k] for s in alone])


def test_the_stored_state_nearest_in_time_is_found():
    run = solve(lambda u: torch.ones_like(u), one(0.0), steps=4, dt=0.1)
    assert [run.at(t) is run.states[k] for t, k in ((0.0, 0), (0.31, 3), (3 * 0.1, 3), (9.9, 4), (-1, 0))] == [True] * 5


def test_states_go_from_the_input_to_the_final_state():
    u0 = field()
    run = solve(Diffusion(0.01), u0, steps=3, dt=0.1)
    assert run.states[0] is u0
    assert run.states[-1] is run.final
    assert torch.equal(u0, field())  # nothing is changed in place


def test_too_large_a_step_is_a_status_and_not_an_error():
    """u⁺ = (1 − Δt)u with Δt = 1001 passes 10³⁰⁸ after step 102, where |u| = 10³·¹⁰³ is no longer a float64."""
    run = solve(lambda u: -u, one(), steps=500, dt=1001.0)
    assert run.status is Status.DIVERGED
    assert run.stopped_at == 103
    assert len(run.states) == len(run.times) == 103
    assert run.times[-1] == pytest.approx(102 * 1001.0)
    assert all(torch.isfinite(u).all() for u in run.states)
    assert run.final.item() == pytest.approx(1e306)
    assert run.final is run.states[-1]


def test_divergence_raises_if_asked_to_and_says_what_to_do():
    with pytest.raises(Diverged, match=r"after step 103 of 500 .*smaller dt"):
        solve(lambda u: -u, one(), steps=500, dt=1001.0, throw=True)
    assert solve(lambda u: -u, one(), steps=5, dt=0.5, throw=True).status is Status.FINISHED


@pytest.mark.parametrize("integrator", INTEGRATORS, ids=lambda kind: kind.__name__)
def test_every_integrator_says_that_a_run_diverged(integrator):
    """du/dt = 10¹⁵⁰u leaves float64, which ends at 10³⁰⁸, in the third step at the latest."""
    whole = MasterEquation(Diffusion(0.1), Mixing(1e150 * torch.eye(WIDTH, dtype=torch.float64)))
    run = solve(whole, field(), steps=5, dt=1.0, integrator=integrator())
    assert run.status is Status.DIVERGED
    assert run.stopped_at == len(run.states) <= 3
    assert torch.isfinite(run.final).all()


def test_a_statistic_is_stored_and_final_stays_the_state():
    u0 = field()
    full = solve(Diffusion(0.01), u0, steps=3, dt=0.1)
    thin = solve(Diffusion(0.01), u0, steps=3, dt=0.1, keep=lambda u: u.norm().item())
    assert thin.states == tuple(u.norm().item() for u in full.states)
    assert torch.equal(thin.final, full.final)


def test_a_diverged_run_keeps_statistics_of_finite_states_and_the_last_of_them():
    run = solve(lambda u: -u, one(), steps=500, dt=1001.0, keep=lambda u: u.abs().log10().item())
    assert run.states == pytest.approx([3.0 * k for k in range(103)])
    assert run.final.item() == pytest.approx(1e306)


@pytest.mark.parametrize("masked", [True, False])
def test_attention_maps_are_those_of_the_term_at_the_start_of_each_step(masked):
    u, mask = padded(fill=0.0) if masked else (field(), None)
    for f in (equation(), layered(3, 0.1)):
        run = solve(f, u, steps=3, dt=0.1, mask=mask, attention=True)
        assert len(run.attention) == 3
        for step, maps in enumerate(run.attention):
            want = f.at(run.times[step]).terms[0].weights(run.states[step], mask)
            assert maps.shape == (len(u), 2, u.shape[1], u.shape[1])
            assert torch.equal(maps, want)
    assert solve(equation(), u, steps=1, dt=0.1, mask=mask).attention is None


@pytest.mark.parametrize("integrator", INTEGRATORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrap", [lambda term: term, lambda term: PreNorm(term, WIDTH)])
@pytest.mark.parametrize("first", [True, False])
def test_maps_are_computed_once_where_the_term_acts_on_the_state_that_they_are_of(integrator, wrap, first):
    """And the states are those of the fused kernel; in a sweep that begins with another term it acts on another one."""
    inside = seeded(lambda: Interaction(WIDTH, 2, causal=True), spread=0.5)
    terms = [seeded(lambda: wrap(inside)), Diffusion(0.02)]
    f, calls = MasterEquation(*(terms if first else reversed(terms))), []
    options = {"steps": 3, "dt": 0.1, "integrator": integrator()}
    inside.qkv.register_forward_hook(lambda *_: calls.append(1))
    plain = solve(f, field(), **options)
    alone = len(calls)
    run = solve(f, field(), attention=True, **options)
    elsewhere = not first and isinstance(options["integrator"], LieEuler | Strang)
    assert len(calls) == 2 * alone + 3 * elsewhere
    torch.testing.assert_close(run.states, plain.states, rtol=1e-12, atol=1e-12)
    for maps, state in zip(run.attention, run.states[:-1], strict=True):
        assert torch.equal(maps, terms[0].weights(state))


@pytest.mark.parametrize("recompute", [True, False])
def test_the_gradient_is_the_same_where_maps_are_kept(recompute):
    def loss(run):
        return run.final.square().sum() + (0 if run.attention is None else 0 * sum(P.sum() for P in run.attention))

    f, options = layered(3, 0.1), {"steps": 3, "dt": 0.1, "recompute": recompute, "of": loss}
    for one, other in zip(
        gradients_of(f, field(), **options), gradients_of(f, field(), attention=True, **options), strict=True
    ):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_attention_maps_are_kept_beside_a_statistic():
    full = solve(equation(), field(), steps=2, dt=0.1, attention=True)
    thin = solve(equation(), field(), steps=2, dt=0.1, attention=True, keep=lambda u: None)
    assert all(torch.equal(a, b) for a, b in zip(full.attention, thin.attention, strict=True))


@pytest.mark.parametrize("wrap", [lambda term: term, lambda term: PreNorm(term, WIDTH), MasterEquation])
def test_attention_maps_come_from_a_term_alone_too(wrap):
    f = seeded(lambda: wrap(Interaction(WIDTH, 2)))
    assert solve(f, field(), steps=1, dt=0.1, attention=True).attention[0].shape == (2, 2, 5, 5)


@pytest.mark.parametrize(
    "f", [lambda u: -u, Diffusion(0.1), MasterEquation(Diffusion(0.1)), layered(interpolation="linear")]
)
def test_attention_without_a_list_of_terms_with_an_interaction_is_refused(f):
    with pytest.raises(ValueError, match=r"attention=True needs|interpolation='constant'"):
        solve(f, field(), steps=1, dt=0.1, attention=True)


def test_the_gradient_at_every_depth_is_that_of_the_steps_that_follow():
    """For du/dt = Mu by Euler, ∂loss/∂u_l = ((I + ΔtM)ᵀ)^{L−l} ∂loss/∂u_L."""
    M = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u0 = field(1, 1).requires_grad_()
    run = solve(Mixing(M), u0, steps=5, dt=0.1)
    gradients = torch.autograd.grad((run.final**2).sum(), run.states)
    step = torch.eye(WIDTH, dtype=torch.float64) + 0.1 * M
    for depth, found in enumerate(gradients):
        want = torch.linalg.matrix_power(step.T, 5 - depth) @ (2 * run.final.flatten())
        torch.testing.assert_close(found.flatten(), want.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("integrator", INTEGRATORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("masked", [True, False])
def test_every_depth_has_a_gradient(integrator, masked):
    u, mask = padded(fill=0.0) if masked else (field(), None)
    run = solve(layered(), u.requires_grad_(), steps=3, dt=0.1, integrator=integrator(), mask=mask)
    gradients = torch.autograd.grad((run.final**2).sum(), run.states)
    real = mask if masked else torch.ones(u.shape[:2], dtype=torch.bool)
    assert all((g[real].abs().sum(dim=-1) > 0).all() for g in gradients)


def gradients_of(f, u, *, of=lambda run: run.final.square().sum(), **options):
    """∂loss/∂u₀ and ∂loss/∂weight for every weight of f, beside the loss."""
    f.zero_grad()
    start = u.clone().requires_grad_()
    loss = of(solve(f, start, **options))
    loss.backward()
    return [loss.detach(), start.grad, *[torch.zeros_like(w) if w.grad is None else w.grad for w in f.parameters()]]


RECOMPUTED = {"every state": {}, "a statistic": {"keep": lambda u: u.square().mean()}}


@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
@pytest.mark.parametrize("integrator", INTEGRATORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("masked", [True, False])
def test_recomputed_gradients_are_those_of_the_stored_graph(integrator, masked, kept):
    """Of the field and of every weight, for a loss that sees what was kept on the way too."""
    u, mask = padded(fill=0.0) if masked else (field(), None)

    def loss(run):
        return run.final.square().sum() + sum(state.sin().sum() for state in run.states)

    options = {"steps": 23, "dt": 0.1, "integrator": integrator(), "mask": mask, "of": loss} | kept
    for f in (equation(), layered(23, 0.1)):
        stored, again = (gradients_of(f, u, recompute=recompute, **options) for recompute in (False, True))
        for one, other in zip(stored, again, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_recomputed_gradients_reach_both_layers_that_a_line_joins():
    f, options = layered(4, 0.1, "linear"), {"steps": 12, "dt": 0.1 / 3, "integrator": RK4()}
    stored, again = (gradients_of(f, field(), recompute=recompute, **options) for recompute in (False, True))
    for one, other in zip(stored, again, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_recomputed_gradients_of_a_transformer_of_384_layers_are_exact():
    model = seeded(lambda: transformer(WIDTH, 384, 2, 6))
    options = {"steps": 384, "dt": model.dt, "integrator": model.integrator}
    stored = gradients_of(model.equation, field(), **options)
    for kept in RECOMPUTED.values():
        for one, other in zip(
            stored, gradients_of(model.equation, field(), recompute=True, **kept, **options), strict=True
        ):
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_recomputing_keeps_no_more_of_the_insides_than_those_of_a_few_steps():
    """The largest number of steps whose graph is held at any time, in the run and in backward."""
    alive, most = weakref.WeakSet(), []

    class Inside:
        pass

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            ctx.inside = Inside()
            alive.add(ctx.inside)
            most.append(len(alive))
            return -u

        @staticmethod
        def backward(ctx, gradient):
            return -gradient

    for steps in (64, 256):
        u = one().requires_grad_()
        solve(Counted.apply, u, steps=steps, dt=0.01, keep=lambda u: None, recompute=True).final.sum().backward()
        assert 1 < max(most) <= math.sqrt(steps)
        assert u.grad.item() == pytest.approx(0.99**steps, rel=1e-12)


class Keeping(torch.nn.Module):
    """What it computes from its weight, and from u if it is to see u, is computed again every so many steps only."""

    def __init__(self, every, sees):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, WIDTH**2, dtype=torch.float64).view(WIDTH, WIDTH))
        self.every, self.sees = every, sees

    def forward(self, u, t):
        if round(t / 0.1) % self.every == 0:
            self.kept = self.weight.tanh() * (u.mean() if self.sees else 1.0)
        return u @ self.kept


@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("every", [1, 2, 100])
def test_what_f_keeps_for_a_later_step_has_its_gradient_or_backward_fails(every, sees, kept):
    """The graph of a weight that was kept is used up by the first of several parts, that of a field is another's."""
    f, options = Keeping(every, sees), {"steps": 16, "dt": 0.1} | kept
    stored = gradients_of(f, field(), **options)
    again = functools.partial(gradients_of, f, field(), recompute=True, **options)
    within_a_part = 1 if not kept else 2  # steps
    if every > within_a_part:
        words = "keeps no field of an earlier step" if sees else "backward through the graph a second time"
        with pytest.raises((RuntimeError, ValueError), match=words):
            again()
        return
    for one, other in zip(stored, again(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def on_the_cpu(run, u):
    with torch.autograd.graph.save_on_cpu():
        return run(u)


WITHIN = {
    "a checkpoint": functools.partial(checkpoint, use_reentrant=False),
    "a reentrant checkpoint": functools.partial(checkpoint, use_reentrant=True),
    "saving on the CPU": on_the_cpu,
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
def test_recomputing_works_where_saved_tensors_are_packed(within, kept):
    f, found = equation(), []
    for way in (lambda run, u: run(u), within):
        start = field().requires_grad_()
        way(lambda u: solve(f, u, steps=16, dt=0.1, recompute=True, **kept).final, start).square().sum().backward()
        found.append([start.grad, *[weight.grad.clone() for weight in f.parameters()]])
        f.zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
def test_a_recomputed_run_that_diverges_is_the_same_run(kept):
    """u⁺ = (1 − Δt)u with Δt = 1001 passes 10³⁰⁸ after step 102; what went before has its gradient."""
    start = one().requires_grad_()
    run = solve(lambda u: -u, start, steps=500, dt=1001.0, recompute=True, **kept)
    assert run.status is Status.DIVERGED
    assert run.stopped_at == len(run.states) == len(run.times) == 103
    run.final.log10().sum().backward()
    assert start.grad.item() == pytest.approx(1 / math.log(10))
    with pytest.raises(Diverged, match="after step 103 of 500"):
        solve(lambda u: -u, start, steps=500, dt=1001.0, recompute=True, throw=True, **kept)


@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
def test_what_is_random_draws_the_same_numbers_again(kept):
    noisy = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.5)).double()
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        found.append(gradients_of(noisy, field(), steps=23, dt=0.1, recompute=recompute, **kept))
        found[-1].append(torch.rand(1))  # and what comes after is not disturbed
    for stored, again in zip(*found, strict=True):
        torch.testing.assert_close(again, stored, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept", RECOMPUTED.values(), ids=RECOMPUTED)
@pytest.mark.parametrize("start", [one(), one(requires_grad=True)])
@pytest.mark.parametrize("since", [0.0, 0.5])
def test_a_weight_that_recomputing_would_not_see_is_refused(start, kept, since):
    """In backward, wherever along the run it has its part; what is computed without it stands."""
    hidden = torch.ones(1, dtype=torch.float64, requires_grad=True)

    def f(u, t):
        return -hidden * u if t >= since else -u

    run = solve(f, start, steps=10, dt=0.1, recompute=True, **kept)
    assert run.final.item() == pytest.approx(0.9**10)
    with pytest.raises(ValueError, match="recompute=True needs every weight of f as its parameter"):
        run.final.sum().backward()


@pytest.mark.parametrize("frozen", [True, False])
def test_weights_that_stand_in_for_those_of_f_during_the_run_alone_are_refused(frozen):
    """As in torch.func.functional_call, where backward comes when f has its own weights again."""

    class Run(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.f = torch.nn.Linear(WIDTH, WIDTH).double().requires_grad_(not frozen)

        def forward(self, u):
            return solve(self.f, u, steps=3, dt=0.1, recompute=True).final

    other = {name: torch.ones_like(weight, requires_grad=True) for name, weight in Run().named_parameters()}
    final = torch.func.functional_call(Run(), other, field())
    with pytest.raises(ValueError, match="recompute=True needs f with the weights of the run"):
        final.sum().backward()


def test_recomputing_runs_f_once_a_step_and_once_more_in_backward():
    norm = torch.nn.BatchNorm1d(WIDTH).double()
    f = torch.nn.Sequential(torch.nn.Flatten(0, 1), norm, torch.nn.Unflatten(0, (2, 5)))
    run = solve(f, field(), steps=2, dt=0.1, recompute=True)
    assert norm.num_batches_tracked == 2
    run.final.sum().backward()
    assert norm.num_batches_tracked == 4


@pytest.mark.parametrize("recompute", [True, False])
def test_a_mask_that_changes_before_backward_is_refused(recompute):
    u, mask = padded(fill=0.0)
    run = solve(equation(), u.requires_grad_(), steps=3, dt=0.1, mask=mask, recompute=recompute)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run.final.sum().backward()


def test_a_final_state_without_a_gradient_gives_the_start_none():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            return u.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    start = one().requires_grad_()
    Nothing.apply(solve(lambda u: -u, start, steps=3, dt=0.1, recompute=True).final).sum().backward()
    assert start.grad is None


def test_a_coefficient_of_diffusion_that_is_learned_has_its_gradient_recomputed():
    found = []
    for recompute in (False, True):
        coefficient = torch.full((WIDTH,), 0.02, dtype=torch.float64, requires_grad=True)
        run = solve(Diffusion(coefficient), field(), steps=10, dt=0.01, recompute=recompute)
        found.append(torch.autograd.grad(run.final.square().sum(), coefficient)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_field(dtype):
    run = solve(equation().to(dtype), field(dtype=dtype), steps=2, dt=0.1, attention=True)
    assert {u.dtype for u in (*run.states, *run.attention)} == {dtype}


@pytest.mark.parametrize("kind", [int, np.int64])
def test_steps_may_be_a_number_of_numpy(kind):
    assert len(solve(lambda u: -u, one(), steps=kind(3), dt=np.float64(0.1)).states) == 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": -1}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": "3"}, "steps"),
        ({"dt": 0.0}, "dt"),
        ({"dt": -0.1}, "dt"),
        ({"dt": math.inf}, "dt"),
        ({"dt": math.nan}, "dt"),
        ({"dt": "0.1"}, "dt"),
        ({"integrator": "euler"}, "integrator must be an Integrator; not str"),
        ({"integrator": Euler}, "integrator"),
        ({"f": 3.0}, "f must be a function.*float"),
        ({"u0": torch.ones(3, 4)}, r"u0.*\(3, 4\)"),
        ({"u0": torch.ones(1, 0, 4)}, "u0.*none of them 0"),
        ({"u0": torch.full((1, 2, 3), math.nan)}, "u0.*NaN"),
        ({"u0": torch.ones(1, 2, 3, dtype=torch.long)}, "u0.*floating-point"),
        ({"u0": [[[1.0]]]}, "u0.*torch.Tensor"),
        ({"u0": torch.ones(3, 4), "mask": torch.ones(3, 4, dtype=torch.bool)}, r"u0.*\(3, 4\)"),
        ({"mask": torch.ones(1, 2, dtype=torch.bool)}, "mask was given, but f takes no mask"),
        ({"mask": torch.ones(1, 2), "f": Diffusion(0.1)}, "mask must be a bool"),
        ({"mask": torch.tensor([[False, False]]), "f": Diffusion(0.1)}, "mask leaves a sequence"),
        ({"f": Reaction(4, 4)}, r"u must have shape \(batch, token, 4\)"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, words):
    given = {"f": lambda u, t: u, "u0": torch.ones(1, 2, 3), "steps": 1, "dt": 0.1} | wrong
    with pytest.raises(ValueError, match=words):
        solve(given.pop("f"), given.pop("u0"), **given)


@pytest.mark.parametrize("f", [lambda u: u.sum(), lambda u: u.mean(dim=1), lambda u: u[..., :1], lambda u: None])
def test_a_rate_of_another_shape_is_refused(f):
    """Broadcasting would let it through and give a field that nobody meant."""
    with pytest.raises(ValueError, match="f must give a field in the shape of u"):
        solve(f, torch.ones(1, 2, 3), steps=1, dt=0.1)


def test_non_finite_padding_is_no_reason_to_refuse():
    u, mask = padded(fill=math.inf)
    assert solve(Diffusion(0.01), u, steps=1, dt=0.1, mask=mask).status is Status.FINISHED


def test_solve_runs_on_the_meta_device():
    u0 = torch.ones(2, 4, 3, device="meta")
    run = solve(lambda u, t: -u, u0, steps=3, dt=0.1)
    assert run.final.device.type == "meta"
    assert run.status is Status.FINISHED


def test_states_of_another_model_make_the_trajectory_that_solve_makes():
    u0 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    run = solve(lambda u: -u, u0, steps=3, dt=1.0)
    made = Trajectory.of(run.states)
    assert made.times == run.times
    assert made.status is Status.FINISHED
    assert all(torch.equal(a, b) for a, b in zip(made.states, run.states, strict=True))


def test_states_that_blow_up_end_the_trajectory_there():
    u = torch.ones(1, 2, 1)
    run = Trajectory.of([u, u, u * torch.inf, u], attention=[torch.ones(1, 1, 2, 2)] * 3)
    assert run.status is Status.DIVERGED
    assert (run.stopped_at, len(run.states), len(run.attention)) == (2, 2, 2)
    for bad in (torch.nan, torch.inf, -torch.inf):  # one number among finite ones
        assert Trajectory.of([u, torch.tensor([[[1.0], [bad]]])]).status is Status.DIVERGED
    mask = torch.tensor([[True, False]])
    garbled = torch.tensor([[[1.0], [torch.nan]]])
    assert Trajectory.of([u, garbled], mask).status is Status.FINISHED  # padding may hold anything


@pytest.mark.parametrize(
    ("states", "options", "words"),
    [
        ([], {}, "states is empty"),
        ([torch.ones(2, 3)], {}, r"states\[0\] must have shape .* not \(2, 3\)"),
        ([torch.ones(1, 2, 3), torch.ones(1, 2, 4)], {}, r"states\[1\] is \(1, 2, 4\)"),
        (
            [torch.ones(1, 2, 3), torch.ones(1, 2, 3).double()],
            {},
            r"states\[1\] is torch.float64 and not torch.float32",
        ),
        ([torch.ones(1, 2, 3), [1]], {}, r"states\[1\] is list"),
        ([torch.ones(1, 2, 3) * torch.nan], {}, r"states\[0\] holds NaN"),
        ([torch.ones(1, 2, 3)] * 2, {"mask": torch.ones(1, 2)}, "mask must be a bool"),
        ([torch.ones(1, 2, 3)] * 2, {"attention": []}, r"one map per layer, 1, .* not \[\]"),
    ],
)
def test_states_that_are_none_are_refused(states, options, words):
    with pytest.raises(ValueError, match=words):
        Trajectory.of(states, **options)


@pytest.mark.parametrize(("steps", "dt"), [(3, 0.1), (1, 0.1), (6, 0.05), (30, 0.01), (4, 0.05)])
def test_layers_are_swept_one_step_each_or_in_parts(steps, dt):
    assert solve(layered(3, dt=0.1), field(), steps=steps, dt=dt).status is Status.FINISHED


@pytest.mark.parametrize(("steps", "dt"), [(3, 0.1 / 3), (2, 0.05), (3, 0.05), (2, 0.2), (1, 0.3)])
def test_a_step_that_leaves_layers_out_is_refused_with_what_would_work(steps, dt):
    with pytest.raises(ValueError, match=r"dt = .* leave layers out; take dt=0.1, .* or dt=0.1/k with steps=3\*k"):
        solve(layered(3, dt=0.1), field(), steps=steps, dt=dt)


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
@pytest.mark.parametrize(("steps", "dt", "most"), [(4, 0.1, 3), (7, 0.05, 6), (31, 0.01, 30), (10**9, 0.1, 3)])
def test_a_step_behind_the_last_layer_is_refused_with_the_most_that_would_work(steps, dt, most, interpolation):
    with pytest.raises(ValueError, match=f"steps must be at most {most}: .* 3 layers of f, .* would repeat the last"):
        solve(layered(3, dt=0.1, interpolation=interpolation), field(), steps=steps, dt=dt)


def test_layers_that_are_joined_by_lines_may_be_passed_in_longer_steps():
    path = layered(3, dt=0.1, interpolation="linear")
    assert solve(path, field(), steps=1, dt=0.2).status is Status.FINISHED
    assert solve(path, field(), steps=3, dt=0.2 / 3).status is Status.FINISHED
    with pytest.raises(ValueError, match="leave layers out"):
        solve(path, field(), steps=3, dt=0.1 / 3)


def test_a_field_of_another_dtype_is_refused_where_the_run_starts():
    with pytest.raises(ValueError, match=r"u0 is torch.float32 and not torch.float64 as the weights; try u0.to\("):
        solve(equation(), field(dtype=torch.float32), steps=1, dt=0.1)


def test_one_layer_is_followed_for_any_time():
    layer = Layered([MasterEquation(Diffusion(0.01))])
    u = torch.randn(1, 4, 1)
    torch.testing.assert_close(
        solve(layer, u, steps=2, dt=2.0).final, solve(layer.equations[0], u, steps=2, dt=2.0).final
    )
