"""What holds for every term: its axes, padding, dtype, device, derivatives and refusals."""

import copy
import math

import pytest
import torch
from systems import SEQUENCES, TERMS, WIDTH, assert_padding_changes_nothing, field, padded, term
from torch.func import functional_call

from pdelab import Euler, Interaction, LieEuler, MasterEquation, PreNorm, solve
from pdelab.field import token_mean
from pdelab.metrics.budget import budget
from pdelab.options import choose
from pdelab.terms.base import Term

every_term = pytest.mark.parametrize("name", TERMS)

# what may move when feature 1 of token 2 of batch item 0 does, out of 5 tokens and 4 features: (tokens, features)
ALL_TOKENS, ALL_FEATURES = {0, 1, 2, 3, 4}, {0, 1, 2, 3}
MOVED = {
    "interaction": (ALL_TOKENS, ALL_FEATURES),
    "interaction with leak": (ALL_TOKENS, ALL_FEATURES),
    "causal interaction": ({2, 3, 4}, ALL_FEATURES),
    "interaction with shared output": (ALL_TOKENS, ALL_FEATURES),
    "interaction with shared output, narrow": ({2, 3, 4}, ALL_FEATURES),
    "interaction with rotary positions, grouped": ({2, 3, 4}, ALL_FEATURES),
    "reaction": ({2}, ALL_FEATURES),
    "reaction with a gate": ({2}, ALL_FEATURES),
    "reaction of the field normalised by its size": ({2}, ALL_FEATURES),
    "reaction with leak and source": ({2}, ALL_FEATURES),
    "diffusion, reflecting": ({1, 2, 3}, {1}),
    "diffusion, absorbing, per feature": ({1, 2, 3}, {1}),
    "diffusion, periodic, matrix": ({1, 2, 3}, {0, 1, 2}),  # the matrix of systems.py has nothing from 1 to 3
    "diffusion over features, reflecting": ({2}, {0, 1, 2}),
    "spatial stabilization": (ALL_TOKENS, ALL_FEATURES),
    "spatial stabilization, γ(x, t)": (ALL_TOKENS, ALL_FEATURES),
    "corrected stabilization": (ALL_TOKENS, ALL_FEATURES),
    "LayerNorm rate": ({2}, ALL_FEATURES),
    "RMSNorm rate": ({2}, ALL_FEATURES),
    "interaction of the normalised field": (ALL_TOKENS, ALL_FEATURES),
    "reaction of the normalised field": ({2}, ALL_FEATURES),
    "coupling of two layers": ({2}, ALL_FEATURES),  # features 0, 1 are layer 1 and give to 2, 3, layer 2
    "coupling with both ends": ({2}, {2, 3}),  # features 0, 1 are the input, which is held
    "interaction in each of two layers": (ALL_TOKENS, {0, 1}),
    "reaction in the first of two layers": ({2}, {0, 1}),
}


@every_term
def test_a_change_reaches_the_tokens_and_features_it_may_and_no_other_batch_item(name):
    u = field()
    changed = u.clone()
    changed[0, 2, 1] += 0.5
    moved = ((term(name)(changed) - term(name)(u)).abs() > 1e-9).nonzero()
    tokens, features = MOVED[name]
    assert set(moved[:, 0].tolist()) == {0}
    assert set(moved[:, 1].tolist()) == tokens
    assert set(moved[:, 2].tolist()) == features


@every_term
def test_a_batch_is_its_items_one_by_one(name):
    u = field(batch=3)
    one_by_one = torch.cat([term(name)(item) for item in u.split(1)])
    torch.testing.assert_close(term(name)(u), one_by_one, rtol=0, atol=1e-12)


@every_term
@pytest.mark.parametrize("fill", [0.0, 1e30, math.nan])
def test_padding_changes_nothing_and_has_no_rate(name, fill):
    u, mask = padded(fill=fill)
    with torch.no_grad():
        alone = [term(name)(one, 0.3) for one in SEQUENCES]
        assert_padding_changes_nothing(term(name)(u, 0.3, mask), mask, alone)


@every_term
def test_padding_reaches_no_gradient(name):
    u, mask = padded()
    u.requires_grad_()
    rate, module = term(name), term(name)
    rate(u, 0.3, mask).square().sum().backward()
    alone = [one.clone().requires_grad_() for one in SEQUENCES]
    sum(module(one, 0.3).square().sum() for one in alone).backward()
    for row, one in enumerate(alone):
        torch.testing.assert_close(u.grad[row, mask[row]], one.grad[0], rtol=1e-10, atol=1e-10)
    assert (u.grad[~mask] == 0).all()
    for found, want in zip(rate.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(found.grad, want.grad, rtol=1e-10, atol=1e-10)


@every_term
def test_derivatives_are_those_of_finite_differences(name):
    module = term(name)
    names, weights = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())
    u, mask = padded((SEQUENCES[1], SEQUENCES[2]), (0, 1), tokens=5, fill=0.0)

    def rate(u, *weights):
        return functional_call(module, dict(zip(names, weights, strict=True)), (u, 0.3, mask))

    inputs = [x.detach().clone().requires_grad_() for x in (u, *weights)]
    assert torch.autograd.gradcheck(rate, inputs, fast_mode=True)


@every_term
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_field(name, dtype):
    module, u = term(name).to(dtype), field(dtype=dtype)
    mask = torch.ones(u.shape[:2], dtype=torch.bool)
    assert module(u).dtype == module(u, 0.3, mask).dtype == dtype
    torch.testing.assert_close(module(u).double(), term(name)(u.double()), rtol=1e-4, atol=1e-4)


@every_term
@pytest.mark.parametrize("masked", [False, True])
def test_a_term_runs_on_the_meta_device(name, masked):
    with torch.device("meta"):
        module, u = TERMS[name](), torch.ones(2, 5, WIDTH)
        mask = torch.ones(2, 5, dtype=torch.bool) if masked else None
    rate = module(u, 0.3, mask)
    assert (rate.shape, rate.device.type) == (u.shape, "meta")


@every_term
@pytest.mark.parametrize("shape", [(5, WIDTH), (1, 2, 5, WIDTH), (2, 0, WIDTH), (0, 5, WIDTH)])
def test_a_field_of_wrong_rank_or_without_tokens_is_refused(name, shape):
    with pytest.raises(ValueError, match=r"^u must have shape \(batch, token"):
        term(name)(torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    "name", [n for n in TERMS if "spatial" not in n and "corrected" not in n and "reflecting" not in n]
)
@pytest.mark.parametrize("width", [1, WIDTH + 1])
def test_a_field_of_another_width_is_refused(name, width):
    with pytest.raises(ValueError, match=r"^u must have"):
        term(name)(field(width=width))


@every_term
def test_the_symbol_is_a_letter_of_the_equation(name):
    letters = {"interaction": "A", "causal": "A", "reaction": "R", "diffusion": "D", "coupling": "C"}
    assert isinstance(term(name), Term)
    assert term(name).symbol == letters.get(name.replace(",", "").split()[0], "S")


def test_a_choice_that_is_not_known_hears_of_the_known_ones():
    assert choose("colour", "red", {"red": 1, "blue": 2}) == 1
    with pytest.raises(ValueError, match=r"colour must be one of red, blue; not 'green'"):
        choose("colour", "green", {"red": 1, "blue": 2})


@every_term
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_field_that_is_no_float_is_refused_with_what_to_do(name, dtype):
    with pytest.raises(ValueError, match=r"u must hold floating-point numbers, not torch.*; try u.float\(\)"):
        term(name)((4 * field()).to(dtype))


@pytest.mark.parametrize("name", [name for name in TERMS if list(TERMS[name]().parameters())])
def test_a_field_of_another_dtype_than_the_weights_is_refused_in_our_words(name):
    words = r"u is torch.float64 and not torch.float32 as the weights; try u.to\(torch.float32\), .* \.double\(\)"
    with pytest.raises(ValueError, match=words):
        term(name).float()(field())
    with pytest.raises(ValueError, match=r"u is on meta and the weights on cpu; try u.to\('cpu'\)"):
        term(name)(field().to("meta"))


@every_term
def test_autocast_may_mix_dtypes(name):
    module, u = term(name).float(), field(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(u), module(u.bfloat16())
    for one in rough:
        torch.testing.assert_close(one.float(), module(u), rtol=0.1, atol=0.1)


@every_term
def test_a_mask_with_holes_or_without_tokens_is_refused(name):
    holes, none = torch.ones(2, 2, 5, dtype=torch.bool).unbind()
    holes[0, 2], none[1] = False, False
    for mask, words in ((holes, "mask has holes"), (none, "mask leaves a sequence"), (holes[0], "mask must be a bool")):
        with pytest.raises(ValueError, match=words):
            term(name)(field(), 0.0, mask)


def test_a_norm_may_be_kept_in_float32_inside_a_model_of_half_precision():
    block = PreNorm(Interaction(4), 4).bfloat16()
    block.norm.float()
    assert block(torch.randn(1, 3, 4).bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"u is torch.float64 and not torch.float32"):
        PreNorm(Interaction(4), 4)(torch.randn(1, 3, 4).double())


class Low(torch.nn.Module):
    """A layer put in place of a linear one, whose weights have other names."""

    def __init__(self, layer):
        super().__init__()
        self.base = layer

    def forward(self, x):
        return self.base(x)


def test_a_layer_may_be_replaced_by_one_that_keeps_its_weights_elsewhere():
    term, u = Interaction(4), torch.randn(1, 3, 4)
    before = term(u)
    term.qkv = Low(term.qkv)
    torch.testing.assert_close(term(u), before)


FUNCTIONS = {
    "f(u)": lambda u: 2 * u,
    "f(u, t)": lambda u, t: (1 + t) * u,
    "f(u, t, mask)": lambda u, t, mask: token_mean(u, mask).expand_as(u),
    "f(u, t, mask=None)": lambda u, t=0.0, mask=None: token_mean(u, mask).expand_as(u),
    "a built-in": torch.sin,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_function_is_a_term_that_gives_what_it_gives(name):
    f, u = FUNCTIONS[name], field()
    made = Term.of("Q", f)
    expected = {"f(u)": lambda: f(u), "f(u, t)": lambda: f(u, 0.5), "a built-in": lambda: f(u)}
    want = expected.get(name, lambda: f(u, 0.5, None))()
    torch.testing.assert_close(made(u, 0.5), want, rtol=0, atol=0)
    assert MasterEquation(made).rates(u, 0.5).keys() == {"Q"}


@pytest.mark.parametrize("name", ["f(u, t, mask)", "f(u, t, mask=None)"])
def test_a_function_that_takes_a_mask_has_no_rate_at_padding(name):
    u, mask = padded(fill=math.nan)
    made = Term.of("A", FUNCTIONS[name])
    assert_padding_changes_nothing(made(u, 0.0, mask), mask, [made(one) for one in SEQUENCES])


def test_a_module_gives_its_weights_to_the_term_and_a_copy_of_the_term_has_its_own():
    layer = torch.nn.Linear(WIDTH, WIDTH).double()
    made = Term.of("R", layer)
    assert list(made.parameters()) == list(layer.parameters())
    other = copy.deepcopy(made)
    torch.nn.init.zeros_(other.f.weight)
    torch.testing.assert_close(made(field()), layer(field()), rtol=0, atol=0)
    assert not torch.equal(other(field()), made(field()))


def test_the_budget_of_an_equation_made_of_functions_is_that_of_its_terms():
    ours = MasterEquation(term("interaction"), term("reaction"))
    theirs = MasterEquation(*(Term.of(one.symbol, one) for one in ours.terms))
    for integrator in (Euler(), LieEuler()):
        run = solve(ours, field(), steps=2, dt=0.1, integrator=integrator)
        torch.testing.assert_close(
            budget(theirs, run, integrator).energy, budget(ours, run, integrator).energy, rtol=0, atol=0
        )


def test_what_is_no_function_of_a_field_is_refused():
    u, mask = padded(fill=0.0)
    for f, words in (
        (3, "f must be a function"),
        (lambda u: u[:, :1], "f must give a field in the shape of u"),
        (lambda u: (u, None), "f must give a field in the shape of u"),
    ):
        with pytest.raises(ValueError, match=words):
            Term.of("A", f)(u)
    with pytest.raises(ValueError, match="mask was given, but f takes no mask"):
        Term.of("A", torch.sin)(u, 0.0, mask)
    with pytest.raises(ValueError, match="symbol must be a letter"):
        Term.of("", torch.sin)
