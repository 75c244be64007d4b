"""record: any model as a trajectory with its branches, and the model unharmed."""

import copy
import inspect
import re
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from itertools import groupby, pairwise

import pytest
import torch
import transformers as hf
from architectures import GPT, GROUPED, MODELS, SMALL, WORDS, tokens
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from pdelab.integrators import Euler, LieEuler
from pdelab.recording import Unreadable, record
from pdelab.status import Status
from pdelab.watching import tensors

WIDTH = 8


def states(batch: int = 3, length: int = 7, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


class Mix(nn.Module):
    """Attention of one head."""

    def __init__(self, causal: bool = False):
        super().__init__()
        self.qkv, self.causal = nn.Linear(WIDTH, 3 * WIDTH), causal

    def forward(self, u: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = None if mask is None else mask[:, None, :]
        return nn.functional.scaled_dot_product_attention(
            *self.qkv(u).chunk(3, -1), attn_mask=seen, is_causal=self.causal
        )


class Block(nn.Module):
    """One layer; subclasses differ in how branches are added to the stream."""

    def __init__(self):
        super().__init__()
        self.mix, self.one, self.two = Mix(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.react = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))


class Pre(Block):
    def forward(self, u, mask=None):
        u = u + self.mix(self.one(u), mask)
        return u + self.react(self.two(u))


class Post(Block):
    def forward(self, u, mask=None):
        u = self.one(u + self.mix(u, mask))
        return self.two(self.react(u) + u)


class Sandwich(Block):
    def __init__(self):
        super().__init__()
        self.three, self.four = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, u):
        u = u + self.three(self.mix(self.one(u)))
        return u + self.four(self.react(self.two(u)))


class Parallel(Block):
    def forward(self, u):
        normed = self.one(u)
        return u + (self.mix(normed) + self.react(normed))


class ParallelInTurn(Block):
    """Added one after the other, but both read the layer's input: a sum, however it is written."""

    def forward(self, u):
        normed = self.one(u)
        mixed, reacted = self.mix(normed), self.react(normed)
        return (u + mixed) + reacted


class InPlace(Block):
    def forward(self, u):
        u += self.mix(self.one(u))
        u += self.react(self.two(u))
        return u


class SecondInPlace(Block):
    """What the first branch left is overwritten by the second."""

    def forward(self, u):
        u = u + self.mix(self.one(u))
        u += self.react(self.two(u))
        return u


class Overwriting(Block):
    """A branch is changed in place once it has been added."""

    def forward(self, u):
        mixed = self.mix(self.one(u))
        u = u + mixed
        mixed.zero_()
        return u + self.react(self.two(u))


class Scaled(Block):
    """DeepNorm: the stream itself is scaled before the branch is added."""

    def forward(self, u):
        u = self.one(1.5 * u + self.mix(u))
        return self.two(u * 1.5 + self.react(u))


class Subtracting(Block):
    def forward(self, u):
        u = torch.add(u, self.mix(self.one(u)), alpha=0.5)
        return u - self.react(self.two(u))


class HandWrittenNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, u):
        return self.weight * (u * torch.rsqrt(u.square().mean(-1, keepdim=True) + 1e-6))


class PostByHand(Post):
    def __init__(self):
        super().__init__()
        self.one, self.two = HandWrittenNorm(), HandWrittenNorm()


class Experts(Block):
    """A router sends every token to one of three networks."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, u):
        u = u + self.mix(self.one(u))
        normed = self.two(u)
        best = self.router(normed).argmax(-1)
        out = torch.zeros_like(u)
        for number, expert in enumerate(self.experts):
            if (best == number).any():
                out[best == number] += expert(normed[best == number])
        return u + out


class Plain(Block):
    """No residual connection."""

    def forward(self, u):
        return self.react(self.mix(u))


class Stack(nn.Module):
    def __init__(self, kind: type[nn.Module], depth: int = 4, shared: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([kind()] if shared else (kind() for _ in range(depth)))
        self.depth, self.head = depth, nn.Linear(WIDTH, 3)

    def forward(self, x, *args):
        u = self.embed(x)
        for number in range(self.depth):
            u = self.layers[number % len(self.layers)](u, *args)
        return self.head(u)


OWN = {
    Pre: "A→R",
    Post: "A→S→R→S",
    Sandwich: "A→R",
    Parallel: "A+R",
    ParallelInTurn: "A+R",
    InPlace: "A→R",
    SecondInPlace: "A→R",
    Overwriting: "A→R",
    Scaled: "A+S→S→R+S→S",  # the branch reads the stream before it is scaled
    Subtracting: "A→R",
    PostByHand: "A→S→R→S",
    Experts: "A→R",
}


def check_sums(rec) -> None:
    """Σ δ = u⁺ − u in every layer, and every write leads from `before` to `after`."""
    for (u, after), stages in zip(pairwise(rec.trajectory.states), rec.stages, strict=True):
        scale = max(x.abs().max() for s in stages for x in (s.before, s.after)).item()
        eps = torch.finfo(u.dtype).eps
        total = sum(stage.delta.double() for stage in stages)
        torch.testing.assert_close(total, after.double() - u.double(), rtol=0, atol=8 * eps * scale)
        assert stages[0].before.equal(u)
        assert stages[-1].after.equal(after)
        sums = [list(parts) for _, parts in groupby(stages, key=lambda s: s.before.data_ptr())]
        assert all(one[-1].after.equal(other[0].before) for one, other in pairwise(sums))
        for parts in sums:
            step = parts[-1].after.double() - parts[0].before.double()
            torch.testing.assert_close(sum(s.delta.double() for s in parts), step, rtol=0, atol=8 * eps * scale)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_branches_sum_to_the_step_and_have_the_symbols_they_deserve(kind):
    rec = record(Stack(kind), states())
    assert rec.scheme == OWN[kind]
    assert len(rec.stages) == 4
    check_sums(rec)


@pytest.mark.parametrize("name", MODELS)
def test_other_peoples_architectures_are_read_without_an_adapter_in_their_librarys_own_states(name):
    torch.manual_seed(0)
    build, scheme = MODELS[name]
    model, inputs = build()
    rec = record(model, inputs)
    assert rec.scheme == scheme
    assert len(rec.names) == 3
    check_sums(rec)

    cached = "use_cache" in inspect.signature(model.forward).parameters
    with torch.no_grad():
        out = model.eval()(**inputs, output_hidden_states=True, **({"use_cache": False} if cached else {}))
    hidden = getattr(out, "encoder_hidden_states", None) or out.hidden_states
    if name == "swin":  # gives the states before and after the three layers
        assert rec.trajectory.states[0].equal(hidden[0])
        return
    first = 1 if name == "mamba" else 0  # which leaves the embedding out
    pairs = list(zip(rec.trajectory.states[first:], hidden[:3], strict=False))  # the last has often passed a norm
    assert len(pairs) == 3
    assert all(ours.equal(theirs) for ours, theirs in pairs)


def test_the_cache_of_transformer_lens_has_the_same_branches():
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    torch.manual_seed(0)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_positions=16)).eval()
    config = HookedTransformerConfig(
        n_layers=3, d_model=16, n_ctx=16, d_head=8, n_heads=2, d_mlp=64, d_vocab=50, act_fn="gelu_new",
        normalization_type="LN", eps=1e-5,
    )  # fmt: skip
    hooked = HookedTransformer(config).eval()
    hooked.load_and_process_state_dict(
        convert_gpt2_weights(theirs, config),
        fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False,
    )  # fmt: skip
    with torch.no_grad():
        _, cache = hooked.run_with_cache(tokens())
    rec = record(theirs, {"input_ids": tokens()})
    for layer, stages in enumerate(rec.stages):
        attention, reaction = stages
        torch.testing.assert_close(rec.trajectory.states[layer], cache["resid_pre", layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(attention.delta, cache["attn_out", layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(attention.after, cache["resid_mid", layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(reaction.delta, cache["mlp_out", layer], rtol=0, atol=1e-5)
    torch.testing.assert_close(rec.trajectory.final, cache["resid_post", 2], rtol=0, atol=1e-5)


def test_a_parallel_layer_is_an_euler_step_and_a_serial_one_a_sweep():
    assert isinstance(record(Stack(Parallel), states()).integrator, Euler)
    assert isinstance(record(Stack(ParallelInTurn), states()).integrator, Euler)
    assert isinstance(record(Stack(Post), states()).integrator, LieEuler)


def test_deltas_are_what_the_modules_of_a_layer_compute():
    model = Stack(Pre)
    rec = record(model, states())
    layer, (attention, reaction) = model.layers[1], rec.stages[1]
    u = rec.trajectory.states[1]
    with torch.no_grad():
        assert attention.delta.equal(layer.mix(layer.one(u)))
        assert reaction.delta.equal(layer.react(layer.two(u + attention.delta)))
    assert (attention.name, reaction.name) == ("mix", "react")


def test_causal_attention_is_told_from_attention_to_all():
    model = Stack(Pre)
    for layer in model.layers[:2]:
        layer.mix.causal = True
    rec = record(model, states())
    assert [stages[0].causal for stages in rec.stages] == [True, True, False, False]
    assert rec.stages[0][1].causal is None


def test_one_module_called_four_times_is_four_layers():
    rec = record(Stack(Pre, shared=True), states())
    assert rec.names == ("layers.0",) * 4
    check_sums(rec)
    u = rec.trajectory.states[2]
    assert rec.layer(2)(u).equal(rec.trajectory.states[3])


@pytest.mark.parametrize("left", [False, True])
def test_padding_on_either_side_changes_no_symbol(left):
    mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
    mask = mask.flip(1) if left else mask
    rec = record(Stack(Pre), (states(), mask), mask=mask)
    assert rec.scheme == "A→R"
    assert rec.trajectory.mask.equal(mask)
    check_sums(rec)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_attention_mask_of_the_inputs_is_the_mask(side):
    torch.manual_seed(0)
    model = hf.LlamaModel(hf.LlamaConfig(**GROUPED))
    mask = torch.arange(9) < torch.tensor([[9], [5], [3]])
    mask = mask.flip(1) if side == "left" else mask
    rec = record(model, {"input_ids": tokens(), "attention_mask": mask.long()})
    assert rec.trajectory.mask.equal(mask)
    assert rec.scheme == "A→R"
    assert rec.stages[0][0].causal


@pytest.mark.parametrize("kind", [Pre, Post, Parallel], ids=lambda kind: kind.__name__)
def test_half_precision_is_read_to_its_own_rounding(kind):
    rec = record(Stack(kind).bfloat16(), states(dtype=torch.bfloat16))
    assert rec.scheme == OWN[kind]
    check_sums(rec)


def test_attention_that_hardly_looks_at_other_tokens_is_attention_in_half_precision_too():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for layer in model.layers:
        layer.self_attn.in_proj_bias.data[2 * WIDTH :] = 9.0  # values that are nearly the same for all tokens
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert record(model.to(dtype), states(length=64, dtype=dtype)).scheme == "A→R"


def test_a_model_that_diverges_is_recorded_up_to_there():
    model = Stack(Pre)
    with torch.no_grad():
        model.layers[2].react[2].weight.fill_(1e38)
        model.layers[2].react[2].bias.fill_(3e38)
    rec = record(model, states())
    assert rec.trajectory.status is Status.DIVERGED
    assert rec.trajectory.stopped_at == 3
    assert len(rec.stages) == len(rec.trajectory.states) - 1 == 2


class Over(nn.Module):
    """A layer whose first branch is any function of the tokens; the second is a feed-forward network."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix
        self.react = nn.Linear(WIDTH, WIDTH)

    def forward(self, u):
        u = u + self.mix(u)
        return u + self.react(u)


def attention(allowed: Tensor):
    return lambda u: nn.functional.scaled_dot_product_attention(u, u, u, attn_mask=allowed)


PLACES = torch.arange(9)
AHEAD = PLACES[:, None] < PLACES
TOKENS_SEEN = {
    "two tokens away": ((PLACES[:, None] - PLACES).abs() % 2 == 0, False),
    "windows of four": (PLACES[:, None] // 4 == PLACES // 4, False),
    "a prefix that sees itself": (~AHEAD | (PLACES[:, None] < 4) & (PLACES < 4), False),
    "the token before": ((PLACES[:, None] == PLACES) | (PLACES[:, None] == PLACES + 1), True),
    "all before": (~AHEAD, True),
    "the one after": ((PLACES[:, None] == PLACES) | (PLACES[:, None] + 1 == PLACES), False),
}


@pytest.mark.parametrize("seen", TOKENS_SEEN)
def test_attention_to_any_set_of_tokens_is_found_and_causal_only_if_it_is(seen):
    allowed, causal = TOKENS_SEEN[seen]
    rec = record(Stack(lambda: Over(attention(allowed))), states(length=9))
    assert rec.scheme == "A→R"
    assert rec.stages[0][0].causal is causal


def test_a_causal_convolution_by_fourier_transform_is_causal():
    kernel = torch.tensor([0.5, 0.3, 0.2] + [0.0] * 15)[:, None]

    def convolved(u):
        padded = nn.functional.pad(u, (0, 0, 0, 9))
        return torch.fft.irfft(torch.fft.rfft(padded, dim=1) * torch.fft.rfft(kernel, dim=0), n=18, dim=1)[:, :9]

    assert record(Stack(lambda: Over(convolved)), states(length=9)).stages[0][0].causal


class ScaledSum(Block):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(WIDTH))

    def forward(self, u):
        n = self.one(u)
        return u + self.gamma * (self.mix(n) + self.react(n))


def test_a_sum_of_branches_that_is_scaled_is_still_two_branches():
    model = Stack(ScaledSum)
    rec = record(model, states())
    assert rec.scheme == "A+R"
    layer, u = model.layers[0], rec.trajectory.states[0]
    with torch.no_grad():
        torch.testing.assert_close(rec.stages[0][0].delta, layer.gamma * layer.mix(layer.one(u)))


class Adapter(Block):
    """A third branch that reads the layer's input, added after the second."""

    def __init__(self):
        super().__init__()
        self.beside = nn.Linear(WIDTH, WIDTH)

    def forward(self, u):
        v = u + self.mix(self.one(u))
        v = v + self.react(self.two(v))
        return self.beside(u) + v


class AddModule(Block):
    def __init__(self):
        super().__init__()
        self.add = Sum()

    def forward(self, u):
        u = self.add(u, self.mix(self.one(u)))
        return self.add(self.react(self.two(u)), u)


class Sum(nn.Module):
    def forward(self, u, v):
        return u + v


@pytest.mark.parametrize("kind", [*OWN, Adapter, AddModule, ScaledSum], ids=lambda kind: kind.__name__)
def test_energy_is_accounted_for_by_the_branches_of_every_kind_of_layer(kind):
    rec = record(Stack(kind).double(), states().double())
    energy = torch.stack([u.square().sum(-1).mean() / 2 for u in rec.trajectory.states])
    torch.testing.assert_close(rec.budget().energy.sum(1), energy.diff(), rtol=1e-9, atol=1e-12)
    assert isinstance(rec.integrator, Euler | LieEuler) is (kind not in (Adapter, Scaled))


def test_additions_in_modules_of_their_own_are_additions():
    assert record(Stack(AddModule), states()).scheme == "A→R"


def test_a_shift_of_the_stream_has_one_symbol_written_in_a_layer_or_as_a_module():
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.randn(WIDTH))

        def forward(self, u):
            return u + self.by

    class Module(Pre):
        def __init__(self):
            super().__init__()
            self.shift = Shift()

        def forward(self, u):
            return super().forward(self.shift(u))

    class Written(Module):
        def forward(self, u):
            return Pre.forward(self, u + self.shift.by)

    for kind in (Module, Written):
        rec = record(Stack(kind), states())
        assert rec.scheme == "R→A→R"
        check_sums(rec)
    assert record(Stack(Module), states()).stages[0][0].name == "shift"


def test_a_layer_that_works_in_place_harms_neither_states_nor_inputs():
    plain, changed = Stack(Pre), Stack(InPlace)
    changed.load_state_dict(plain.state_dict())
    changed.embed = plain.embed = nn.Identity()
    x = states()
    one, two = record(plain, states()), record(changed, x)
    assert x.equal(states())
    for a, b in zip(one.trajectory.states, two.trajectory.states, strict=True):
        assert a.equal(b)
    held = two.trajectory.states[0].clone()
    assert two.layer(0)(two.trajectory.states[0]).equal(one.trajectory.states[1])
    assert two.trajectory.states[0].equal(held)

    def half(n, u, f):
        return u + (f(u) - u) / 2

    torch.testing.assert_close(one.rewrite(step=half), two.rewrite(step=half))


def test_layers_of_two_classes_in_one_list_are_one_stack():
    class Hybrid(Stack):
        def __init__(self):
            super().__init__(Pre, depth=5)
            self.layers[3] = Post()

    rec = record(Hybrid(), states())
    assert len(rec.names) == 5
    assert rec.scheme == "A→R or A→S→R→S"


def test_the_stream_is_found_where_the_first_layer_gets_it_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.react, self.first = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, u, start):
            return u + self.react(u) + self.first(start)

    class Started(Stack):
        def forward(self, x):
            u = start = self.embed(x)
            for layer in self.layers:
                u = layer(u, start)
            return self.head(u)

    rec = record(Started(Twice), states())
    assert [block.where for block in rec._blocks] == [(0,)] * 4


class Doubled(Block):
    """torch's attention from one argument to the other."""

    def __init__(self):
        super().__init__()
        self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, u, memory):
        u = u + self.cross(u, memory, memory)[0]
        return u + self.react(self.two(u))


class Onto(Stack):
    """Each layer gets its stream twice."""

    def forward(self, x):
        u = self.embed(x)
        for layer in self.layers:
            u = layer(u, u)
        return self.head(u)


def test_a_layer_that_gets_its_stream_twice_gets_both_of_every_stream():
    model = Onto(Doubled)
    rec = record(model, states())
    assert rec.scheme == "A→R"
    check_sums(rec)
    other = torch.randn_like(rec.trajectory.states[1])
    with torch.no_grad():
        torch.testing.assert_close(rec.layer(1)(other), model.layers[1](other, other))
    torch.testing.assert_close(rec.rewrite(lambda at, u, delta: u + delta), rec.output)
    for layer in model.layers:
        layer.react[2].weight.data.zero_()
        layer.react[2].bias.data.zero_()
    with torch.no_grad():
        torch.testing.assert_close(rec.rewrite(lambda at, u, delta: u + delta), model(states()))


def test_masks_are_found_by_position_and_under_torchs_name():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
    assert record(encoder, {"src": states(), "src_key_padding_mask": ~mask}).trajectory.mask.equal(mask)
    torch.manual_seed(0)
    bert = hf.BertModel(hf.BertConfig(**SMALL, **WORDS))
    padded = torch.arange(9) < torch.tensor([[8], [5], [3]])
    rec = record(bert, (tokens(), padded.long()))
    assert rec.trajectory.mask.equal(padded)
    assert rec.stages[0][0].causal is False


class Padded(nn.Module):
    """An encoder of torch inside a model that is told the lengths of its texts, in an argument of another name."""

    def __init__(self, padding: int | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(21, WIDTH, padding_idx=padding)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids, lengths=None):
        beyond = None if lengths is None else torch.arange(ids.shape[1]) >= lengths[:, None]
        return self.encoder(self.words(ids), src_key_padding_mask=beyond)


class TestPadding:
    lengths = torch.tensor([7, 4, 2])
    real = torch.arange(7) < lengths[:, None]
    ids = tokens(length=7, top=20) * real  # 0 at padding

    def test_is_taken_from_the_attention_of_torch(self):
        rec = record(Padded(), (self.ids, self.lengths))
        assert rec.trajectory.mask.equal(self.real)
        assert rec.notes == ()
        other = torch.tensor([3, 7, 3])
        assert rec.again((self.ids, other)).trajectory.mask.equal(torch.arange(7) < other[:, None])

    def test_given_as_numbers_that_are_added_too(self):
        class Added(Padded):
            def forward(self, ids, lengths):
                beyond = torch.zeros(ids.shape).masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], -torch.inf)
                return self.encoder(self.words(ids), src_key_padding_mask=beyond)

        assert record(Added(), (self.ids, self.lengths)).trajectory.mask.equal(self.real)

    def test_of_other_tokens_that_are_looked_at_is_not_that_of_the_stream(self):
        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True)
                self.decoder = nn.TransformerDecoder(layer, 2)

            def forward(self, u, beyond):
                return self.decoder(u, states(), memory_key_padding_mask=beyond)

        assert record(Decoder(), (states().flip(0), ~self.real)).trajectory.mask is None

    def test_is_not_guessed_from_an_embedding_but_a_note_says_so(self):
        rec = record(Padded(padding=0), self.ids)
        assert rec.trajectory.mask is None
        (note,) = rec.notes
        assert note.startswith("words got its padding index")
        assert note.endswith("give mask")
        assert note in repr(rec)
        told = record(Padded(padding=0), self.ids, mask=self.real)
        assert told.notes == record(Padded(padding=0), (self.ids, self.lengths)).notes == ()
        assert record(Padded(padding=0), self.ids + 1).notes == record(Padded(), self.ids).notes == ()
        assert told.trajectory.mask.equal(self.real)


class Wide(nn.Module):
    """A layer of this width."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.react = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, u):
        u = u + nn.functional.scaled_dot_product_attention(u, u, u)
        return u + self.react(self.norm(u))


class Stages(nn.Module):
    """Rows of layers, each of a width and a depth, one after the other."""

    def __init__(self, *sizes: tuple[int, int]):
        super().__init__()
        torch.manual_seed(0)
        widths = (WIDTH, *(width for width, _ in sizes))
        self.into = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.rows = nn.ModuleList(nn.ModuleList(Wide(width) for _ in range(depth)) for width, depth in sizes)

    def forward(self, u):
        for into, row in zip(self.into, self.rows, strict=True):
            u = into(u)
            for layer in row:
                u = layer(u)
        return u


class Beside(nn.Module):
    """Two stacks that read the same tokens; `between` stands between the layers of the second."""

    def __init__(self, first: int, second: int, between=lambda u: u, kind: type[nn.Module] = Pre):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleList(Pre() for _ in range(first))
        self.second = nn.ModuleList(kind() for _ in range(second))
        self.between = between

    def forward(self, x):
        u, v = x, x
        for layer in self.first:
            u = layer(u)
        for layer in self.second:
            v = layer(self.between(v))
        return u + v


def advised(text: str, model: nn.Module) -> list[nn.Module]:
    """The row of layers whose first one is named in blocks=['name.0', …]."""
    return list(model.get_submodule(re.search(r"blocks=\['(\S+)\.0'(, …)?\]", text).group(1)))


class TestRowsThatAreNotRead:
    @pytest.mark.parametrize(
        ("sizes", "read"),
        [
            ([(8, 3), (16, 2)], 0),
            ([(8, 2), (16, 3)], 1),
            ([(8, 4), (64, 2), (16, 3)], 0),  # the longest, though it has fewer weights than each of the others
            ([(8, 2), (16, 2)], 1),  # of equal ones that with most weights
            ([(16, 2), (8, 2)], 0),
            ([(8, 3), (16, 3), (64, 2)], 1),
            ([(8, 3), (16, 1)], 0),  # one layer is a row too
        ],
    )
    def test_the_longest_is_read_and_the_others_are_named_with_the_blocks_that_read_them(self, sizes, read):
        model = Stages(*sizes)
        rec = record(model, states())
        assert rec.names == tuple(f"rows.{read}.{n}" for n in range(sizes[read][1]))
        others = [n for n in range(len(sizes)) if n != read]
        assert len(rec.notes) == len(others)
        assert all(note in repr(rec) for note in rec.notes)
        for other in others:
            (note,) = (note for note in rec.notes if f"rows.{other}.0" in note)
            assert f"of width {sizes[other][0]};" in note
            assert (f" to rows.{other}.{sizes[other][1] - 1} " in note) is (sizes[other][1] > 1)
            assert ("', …]" in note) is (sizes[other][1] > 1)
            again = record(model, states(), blocks=advised(note, model))
            assert again.names == tuple(f"rows.{other}.{n}" for n in range(sizes[other][1]))
            assert again.notes == ()

    @pytest.mark.parametrize("kind", [Pre, Post], ids=lambda kind: kind.__name__)
    @pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3)])
    def test_of_two_stacks_beside_each_other_too(self, first, second, kind):
        model = Beside(first, second, kind=kind)
        rec = record(model, states())
        rows = [tuple(f"first.{n}" for n in range(first)), tuple(f"second.{n}" for n in range(second))]
        read, other = rows if first > second else rows[::-1]
        assert rec.names == read
        (note,) = rec.notes
        assert note.startswith(f"not read: {other[0]} to {other[-1]} of width 8; ")
        assert record(model, states(), blocks=advised(note, model)).names == other

    def test_a_row_between_whose_layers_something_happens_is_not_said_to_be_readable(self):
        class Louder(Pre):
            def forward(self, u):
                return super().forward(1.1 * u)

        (note,) = record(Beside(3, 2, between=lambda u: 1.1 * u), states()).notes
        assert note == "not read: second.0 to second.1 of width 8; move what happens between them into their module"
        moved = Beside(3, 2, kind=Louder)
        assert record(moved, states(), blocks=moved.second).scheme == "S→A→R"

    def test_a_row_that_the_model_adds_to_its_stream_itself_is_readable_too(self):
        class Adding(Beside):
            def forward(self, x):
                u, v = x, x
                for layer in self.first:
                    u = u + layer(u)
                for layer in self.second:
                    v = v + layer(v)
                return u + v

        model = Adding(3, 2)
        rec = record(model, states())
        assert rec.names == ("first.0", "first.1", "first.2")
        (note,) = rec.notes
        assert record(model, states(), blocks=advised(note, model)).names == ("second.0", "second.1")

    def test_a_stack_alone_has_no_notes(self):
        assert record(Stack(Pre), states()).notes == ()
        assert "not read" not in repr(record(Stack(Pre), states()))

    def test_every_kind_of_layer_is_named(self):
        class Hybrid(Stack):
            def __init__(self):
                super().__init__(Pre, depth=5)
                self.layers[3] = Post()

        assert repr(record(Hybrid(), states())).startswith("Recording(5 layers Pre, Post: A→R or A→S→R→S; ")


class Outside(nn.Module):
    """A model that adds the branches to its stream itself; its modules only make them."""

    def __init__(self, mixed: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(WIDTH, WIDTH)
        react = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
        self.layers = nn.ModuleList(nn.ModuleList([Mix(causal=True), f] if mixed else [f]) for f in react)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        u = self.embed(x)
        for branches in self.layers:
            for branch in branches:
                u = branch(u) + u
        return self.head(self.norm(u))


class TestOutside:
    def test_branches_that_the_model_adds_itself_are_layers_of_one_branch(self):
        model = Outside()
        rec = record(model, states())
        assert rec.names == tuple(f"layers.{n // 2}.{n % 2}" for n in range(6))
        assert [row[0].symbol for row in rec.stages] == ["A", "R"] * 3
        assert rec.stages[0][0].causal
        check_sums(rec)
        assert isinstance(rec.integrator, LieEuler)
        assert len(record(Outside(mixed=False), states()).names) == 3  # the norm after them is no layer

    def test_they_can_be_named_too(self):
        model = Outside()
        assert len(record(model, states(), blocks=[f for row in model.layers for f in row]).names) == 6
        with pytest.raises(Unreadable, match="no module of blocks"):
            record(model, states(), blocks=model.layers)

    def test_their_stream_is_rewritten(self):
        model = Outside()
        rec = record(model, states())
        with torch.no_grad():
            u = model.embed(states())
            for row in model.layers:
                for branch in row:
                    u = u + branch(u) / 2
            wanted = model.head(model.norm(u))
        assert rec.rewrite(lambda at, u, delta: None).equal(rec.output)
        torch.testing.assert_close(rec.rewrite(lambda at, u, delta: u + delta / 2), wanted)
        torch.testing.assert_close(rec.rewrite(step=lambda layer, u, f: (u + f(u)) / 2), wanted)

    def test_their_gradients_are_those_of_backward(self):
        model = Outside().double()
        rec = record(model, states().double())
        found = rec.gradients(lambda out: out.square().sum())
        branches = [branch for row in model.layers for branch in row]
        for number, gradient in enumerate(found):
            u = rec.trajectory.states[number].clone().requires_grad_()
            v = u.clone()
            for branch in branches[number:]:
                v = v + branch(v)
            (wanted,) = torch.autograd.grad(model.head(model.norm(v)).square().sum(), u)
            torch.testing.assert_close(gradient, wanted)


class TestRewrite:
    """The model with another stream, beside code written by hand."""

    @pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
    def test_writing_what_was_there_changes_nothing(self, kind):
        model = Stack(kind)
        rec = record(model, states())
        torch.testing.assert_close(rec.rewrite(lambda at, u, delta: u + delta), rec.output, rtol=0, atol=1e-5)
        assert rec.rewrite(lambda at, u, delta: None).equal(rec.output)
        torch.testing.assert_close(rec.rewrite(step=lambda n, u, f: f(u)), rec.output, rtol=0, atol=0)

    def test_half_of_every_branch(self):
        model = Stack(Pre)
        out = record(model, states()).rewrite(lambda at, u, delta: u + delta / 2)
        with torch.no_grad():
            u = model.embed(states())
            for layer in model.layers:
                u = u + layer.mix(layer.one(u)) / 2
                u = u + layer.react(layer.two(u)) / 2
        torch.testing.assert_close(out, model.head(u), rtol=0, atol=1e-6)

    def test_a_sum_in_place_of_a_sweep(self):
        model, held = Stack(Pre), {}

        def write(at, u, delta):
            if at.symbol == "A":
                held["A"] = delta
                return u
            return u + held["A"] + delta

        out = record(model, states()).rewrite(write)
        with torch.no_grad():
            u = model.embed(states())
            for layer in model.layers:
                u = u + layer.mix(layer.one(u)) + layer.react(layer.two(u))
        torch.testing.assert_close(out, model.head(u), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("kind", [Pre, Post, Parallel], ids=lambda kind: kind.__name__)
    def test_the_sum_of_one_layer_lets_every_branch_read_u(self, kind):
        model = Stack(kind).double()
        rec, layer, u = record(model, states().double()), model.layers[2], states().double()
        with torch.no_grad():
            if kind is Post:
                branches = layer.mix(u), layer.one(u) - u, layer.react(u), layer.two(u) - u
            else:
                branches = layer.mix(layer.one(u)), layer.react(layer.two(u))
        torch.testing.assert_close(rec.summed(2, u), u + sum(branches))

    def test_one_branch_of_a_parallel_layer_is_dropped(self):
        model = Stack(Parallel)
        out = record(model, states()).rewrite(lambda at, u, delta: u + dict(at.parts)["A"])
        with torch.no_grad():
            u = model.embed(states())
            for layer in model.layers:
                u = u + layer.mix(layer.one(u))
        torch.testing.assert_close(out, model.head(u), rtol=0, atol=1e-6)

    def test_a_layer_is_left_out_on_other_inputs(self):
        model, other = Stack(Post), states().flip(0) * 2
        out = record(model, states()).rewrite(step=lambda n, u, f: u if n == 1 else None, inputs=other)
        with torch.no_grad():
            u = model.embed(other)
            for number in (0, 2, 3):
                u = model.layers[number](u)
        torch.testing.assert_close(out, model.head(u), rtol=0, atol=0)

    def test_cross_attention_is_told_from_feed_forward_by_its_name(self):
        """Both act on one token alone, as what is attended to comes from elsewhere."""

        class Crossing(Pre):
            def __init__(self):
                super().__init__()
                self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

            def forward(self, u, memory):
                u = u + self.cross(self.one(u), memory, memory)[0]
                return u + self.react(self.two(u))

        model, memory = Stack(Crossing), states(length=5)
        rec = record(model, (states(), memory))
        assert rec.scheme == "R→R"
        assert [stage.name for stage in rec.stages[0]] == ["cross", "react"]
        names = []
        out = rec.rewrite(lambda at, u, delta: names.append(at.names) or (u if "cross" in at.names else None))
        assert names == [("cross",), ("react",)] * 4
        for layer in model.layers:
            layer.cross.out_proj.weight.data.zero_()
            layer.cross.out_proj.bias.data.zero_()
        with torch.no_grad():
            torch.testing.assert_close(out, model(states(), memory))

    @pytest.mark.parametrize("model", [Stack(Pre), Stack(Post), Stack(InPlace), Outside()])
    def test_a_type_error_of_what_is_written_is_the_readers_own(self, model):
        def write(at, u, delta):
            raise TypeError("mine")

        rec = record(model, states())
        with pytest.raises(TypeError, match=r"^mine$") as raised:
            rec.rewrite(write)
        assert raised.traceback[-1].name == "write"
        with pytest.raises(TypeError, match=r"'Tensor' and 'NoneType'"):
            rec.rewrite(lambda at, u, delta: u + None)
        assert rec.rewrite(lambda at, u, delta: None).equal(rec.output)

    def test_an_addition_in_place_is_rewritten_too(self):
        model = Stack(InPlace)
        out = record(model, states()).rewrite(lambda at, u, delta: u + delta / 2)
        with torch.no_grad():
            u = model.embed(states())
            for layer in model.layers:
                u = u + layer.mix(layer.one(u)) / 2
                u = u + layer.react(layer.two(u)) / 2
        torch.testing.assert_close(out, model.head(u), rtol=0, atol=1e-6)


def test_a_layer_alone_is_differentiable():
    rec = record(Stack(Pre).double(), states().double())
    u = rec.trajectory.states[1].clone().requires_grad_()
    assert torch.autograd.gradcheck(rec.layer(1), u)


def test_a_layer_alone_has_no_dropout_and_the_model_goes_on_training():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train()
    rec = record(model, torch.randn(2, 5, 8))
    assert rec.layer(1)(rec.trajectory.states[1]).equal(rec.trajectory.states[2])
    assert all(part.training for part in model.modules())


def test_arguments_that_the_model_does_not_take_are_refused_before_it_runs():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    with pytest.raises(ValueError, match=r"inputs must be what TransformerEncoder.forward\(src, .*'src'.*\(\{…\},\)"):
        record(model, {"tokens": torch.randn(2, 5, 8)})


def test_gradients_are_those_of_backward():
    model = Stack(Post).double()
    rec = record(model, states().double())
    found = rec.gradients(lambda out: out.square().sum())
    for number, gradient in enumerate(found):
        u = rec.trajectory.states[number].clone().requires_grad_()
        v = u.clone()
        for layer in model.layers[number:]:
            v = layer(v)
        (wanted,) = torch.autograd.grad(model.head(v).square().sum(), u)
        torch.testing.assert_close(gradient, wanted)
    assert all(p.grad is None for p in model.parameters())


class TestLeftAsItWas:
    def everything(self, model: nn.Module) -> list:
        hooks = [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._forward_hooks_with_kwargs), m.training)
            for m in model.modules()
        ]
        return [hooks, {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state().tolist()]

    def check(self, model: nn.Module, before: list, output: Tensor) -> None:
        after = self.everything(model)
        assert after[0] == before[0]
        assert all(after[1][k].equal(v) for k, v in before[1].items())
        assert after[2] == before[2]
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.is_grad_enabled()
        assert not _get_current_dispatch_mode_stack()
        assert model.eval()(states()).equal(output)

    def model(self) -> nn.Module:
        class Counting(Pre):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, u, mask=None):
                self.calls += 1
                return super().forward(u, mask)

        model = Stack(Counting)
        model.layers[1].eval()  # a mixture of modes
        model.layers[2].register_forward_hook(lambda *_: None)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        return model

    def test_after_a_recording(self):
        model = self.model()
        output = copy.deepcopy(model).eval()(states())
        before = self.everything(model)
        rec = record(model, states())
        rec.again(states().flip(0))
        rec.rewrite(lambda at, u, delta: u)
        rec.gradients(torch.sum)
        assert all(p.grad.equal(torch.ones_like(p)) for p in model.parameters())
        self.check(model, before, output)

    def test_inputs_that_the_model_changes_in_place(self):
        class Adding(Stack):
            def forward(self, xs):
                xs[0].add_(1)
                return super().forward(xs[0])

        x, held = states(), states()
        rec = record(Adding(Pre), ([x],))
        one, other = rec.gradients(torch.sum), rec.gradients(torch.sum)
        assert x.equal(held)
        assert rec.again().output.equal(rec.output)
        assert all(a.equal(b) for a, b in zip(one, other, strict=True))

    @pytest.mark.parametrize("look", [lambda rec: rec.layer(0)(states()), lambda rec: rec.gradients(torch.sum)])
    def test_what_a_layer_counts_fills_and_draws_by_itself(self, look):
        class Busy(Pre):
            def __init__(self):
                super().__init__()
                self.register_buffer("log", torch.zeros(99))
                self.filled = 0

            def forward(self, u):
                self.log[self.filled] = torch.rand(())
                self.filled += 1
                return super().forward(u)

        model = Stack(Busy)
        torch.manual_seed(1)
        drawn = torch.get_rng_state()
        look(record(model, states()))
        assert all(layer.filled == 0 and not layer.log.any() for layer in model.layers)
        assert torch.get_rng_state().equal(drawn)

    @pytest.mark.parametrize("fails", [False, True])
    def test_buffers_that_it_makes_anew_or_adds_and_what_it_notes_beside_them(self, fails):
        class Table(Pre):
            """Positions for as many tokens as were seen, made anew where there are more."""

            def __init__(self):
                super().__init__()
                self.register_buffer("places", torch.zeros(2, WIDTH))
                self.length = 2

            def forward(self, u):
                if u.shape[1] > self.length:
                    self.places, self.length = torch.zeros(u.shape[1], WIDTH), u.shape[1]
                    self.register_buffer("seen", torch.ones(()))
                if fails:
                    raise KeyboardInterrupt
                return super().forward(u + 0 * self.places[: u.shape[1]])

        model = Stack(Table)
        before = [layer.places for layer in model.layers]
        if fails:
            with pytest.raises(KeyboardInterrupt):
                record(model, states())
        else:
            assert record(model, states()).scheme == "R→A→R"
        assert all(layer.places is held for layer, held in zip(model.layers, before, strict=True))
        assert all(layer.length == 2 and "seen" not in dict(layer.named_buffers()) for layer in model.layers)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("call", [1, 2, 3, 6])  # while layers are looked for, captured and read
    def test_after_an_interruption(self, error, call):
        model = self.model()
        output = copy.deepcopy(model).eval()(states())
        before, count, plain = self.everything(model), [0], model.layers[2].react.forward

        def failing(*args):
            count[0] += 1
            if count[0] == call:
                raise error
            return plain(*args)

        model.layers[2].react.forward = failing
        with pytest.raises(error):
            record(model, states())
        del model.layers[2].react.forward
        assert count[0] == call
        self.check(model, before, output)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_after_an_interruption_of_another_recording(self, error):
        model = self.model()
        output = copy.deepcopy(model).eval()(states())
        rec, before = record(model, states()), self.everything(model)

        def failing(*args):
            raise error

        model.layers[2].react.forward = failing
        with pytest.raises(error):
            rec.again(states().flip(0))
        del model.layers[2].react.forward
        self.check(model, before, output)
        assert rec.again().output.equal(output)


class TestRowOfLayers:
    """What stands before and behind the layers, of the stream's own width, is none of them."""

    class Wrapped(nn.Module):
        def __init__(self, *parts):
            super().__init__()
            self.parts = nn.Sequential(*parts)

        def forward(self, x):
            return self.parts(x)

    @pytest.mark.parametrize("whole", [False, True])
    def test_a_norm_a_readout_or_an_embedding_in_the_same_list(self, whole):
        torch.manual_seed(0)
        layers = [Pre() for _ in range(3)]
        ends = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        for model in (
            self.Wrapped(*layers, ends[1]),
            self.Wrapped(ends[0], *layers, ends[1], ends[2]),
        ):
            rec = record(model, states(), whole=whole)
            first = next(n for n, part in enumerate(model.parts) if isinstance(part, Pre))
            assert rec.names == tuple(f"parts.{first + n}" for n in range(3))
            assert rec.scheme == ("A" if whole else "A→R")

    def test_an_embedding_with_parts_beside_one_layer_that_is_called_several_times(self):
        class Universal(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.embed = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
                self.step, self.norm = Pre(), nn.LayerNorm(WIDTH)

            def forward(self, x):
                u = self.embed(x)
                for _ in range(4):
                    u = self.step(u)
                return self.norm(u)

        assert record(Universal(), states()).names == ("step",) * 4

    def test_layers_without_norms_are_not_read_as_their_branches(self):
        class Bare(Pre):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.Identity(), nn.Identity()

        rec = record(Stack(Bare), states())
        assert rec.names == tuple(f"layers.{n}" for n in range(4))
        assert rec.scheme == "A→R"

    def test_a_layer_of_another_class_at_the_end_of_a_list_is_a_layer(self):
        model = Stack(Pre)
        model.layers[0], model.layers[3] = Post(), Parallel()
        assert len(record(model, states()).names) == 4


class Gated(Block):
    def __init__(self):
        super().__init__()
        self.gate, self.alpha = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(1))

    def forward(self, u, mask=None):
        u = u + torch.sigmoid(self.gate(u)) * self.mix(self.one(u), mask)
        return u + self.alpha.tanh() * self.react(self.two(u))


class TestNames:
    def test_a_product_has_the_names_of_its_factors(self):
        rec = record(Stack(Gated), states())
        assert [stage.name for stage in rec.stages[0]] == ["gate · mix", "react"]
        without = rec.rewrite(lambda at, u, delta: u if "mix" in at.names else None)
        by_symbol = rec.rewrite(lambda at, u, delta: u if at.symbol == "A" else None)
        assert without.equal(by_symbol)
        assert not without.equal(rec.output)

    def test_a_norm_of_a_branch_leaves_it_its_name(self):
        assert [stage.name for stage in record(Stack(Sandwich), states()).stages[0]] == ["mix", "react"]

    def test_a_sum_that_is_scaled_in_place_has_its_branches(self):
        class InPlaceScale(Block):
            def forward(self, u):
                normed = self.one(u)
                both = self.mix(normed) + self.react(normed)
                both *= 0.5
                return u + both

        rec = record(Stack(InPlaceScale), states())
        assert rec.scheme == "A+R"
        assert [stage.name for stage in rec.stages[0]] == ["mix", "react"]
        check_sums(rec)

    def test_branches_that_add_nothing_are_named(self):
        model = Stack(Pre)
        for layer in model.layers[:2]:
            nn.init.zeros_(layer.react[2].weight)
            nn.init.zeros_(layer.react[2].bias)
        rec = record(model, states())
        assert rec.notes == ("adds nothing, so that R is no finding: layers.0.react, layers.1.react",)


class TestUnreadable:
    def test_layers_without_a_residual_connection_can_be_taken_whole(self):
        model = Stack(Plain)
        with pytest.raises(Unreadable, match="whole=True"):
            record(model, states())
        rec = record(model, states(), whole=True)
        assert rec.scheme == "A"
        check_sums(rec)

    def test_no_layers_at_all(self):
        with pytest.raises(Unreadable, match=r"blocks=\[…\]"):
            record(nn.Linear(WIDTH, 2), states())

    def test_layers_can_be_named(self):
        model = Stack(Pre)
        by_name = record(model, states(), blocks=["layers.1", "layers.2"])
        by_module = record(model, states(), blocks=model.layers)
        assert by_name.names == ("layers.1", "layers.2")
        assert len(by_module.names) == 4
        with pytest.raises(ValueError, match=r"layers\.9"):
            record(model, states(), blocks=["layers.9"])
        with pytest.raises(
            Unreadable, match=r"between layers\.0 and layers\.2 runs layers\.1, which blocks leaves out"
        ):
            record(model, states(), blocks=["layers.0", "layers.2"])

    def test_layers_that_are_left_out_are_named(self):
        class Skipping(Stack):
            def forward(self, x):
                u = start = self.layers[0](self.embed(x))
                for number, layer in enumerate(self.layers[1:]):
                    u = layer(u + start if number == 2 else u)
                return self.head(u)

        with pytest.raises(Unreadable, match=r"between layers\.2 and layers\.3 the model itself adds something"):
            record(Skipping(Pre), states())
        assert len(record(Skipping(Pre), states(), blocks=["layers.0", "layers.1", "layers.2"]).names) == 3

        class Started(Pre):
            def forward(self, u, start):
                return super().forward(u + start)

        class Moved(Stack):
            def __init__(self, kind):
                super().__init__(kind)
                self.layers[3] = Started()

            def forward(self, x):
                u = start = self.layers[0](self.embed(x))
                for layer in self.layers[1:]:
                    u = layer(u, start) if isinstance(layer, Started) else layer(u)
                return self.head(u)

        assert len(record(Moved(Pre), states()).names) == 4

    @pytest.mark.parametrize(
        ("shared", "where"), [(False, r"layers\.0 and layers\.1"), (True, r"two calls of layers\.0")]
    )
    def test_what_the_model_adds_between_layers_is_said_to_belong_into_a_module(self, shared, where):
        class Timed(Stack):
            def __init__(self, kind):
                super().__init__(kind, shared=shared)
                self.times = nn.Parameter(torch.randn(self.depth, WIDTH))

            def forward(self, x):
                u = self.embed(x)
                for number in range(self.depth):
                    u = self.step(u, number)
                return self.head(u)

            def step(self, u, number):
                return self.layers[number % len(self.layers)](u + self.times[number])

        class Step(nn.Module):
            def __init__(self, timed):
                super().__init__()
                self.times, self.layers = timed.times, timed.layers

            def forward(self, u, number):
                return self.layers[number % len(self.layers)](u + self.times[number])

        class Mended(nn.Module):
            """As the sentence says."""

            def __init__(self, timed):
                super().__init__()
                self.embed, self.step, self.depth = timed.embed, Step(timed), timed.depth

            def forward(self, x):
                u = self.embed(x)
                for number in range(self.depth):
                    u = self.step(u, number)
                return u

        with pytest.raises(Unreadable, match=rf"^between {where} the model itself adds something"):
            record(Timed(Pre), states())
        rec = record(Mended(Timed(Pre)), states(), blocks=["step"])  # embed, of the same width, is no layer
        assert rec.scheme == "R→A→R"
        check_sums(rec)

    def test_one_layer_alone_is_read_where_it_is_named(self):
        class One(nn.Module):
            def __init__(self):
                super().__init__()
                self.only = Pre()

            def forward(self, x):
                return self.only(x)

        with pytest.raises(Unreadable, match=r"blocks=\['only'\] reads only as one layer"):
            record(One(), states())
        assert record(One(), states(), blocks=["only"]).scheme == "A→R"
        with pytest.raises(Unreadable, match=r"blocks=\[''\] reads the model as one layer"):
            record(Pre(), states())
        assert record(Pre(), states(), blocks=[""]).scheme == "A→R"

    def test_layers_between_which_something_happens_are_named_and_not_their_parts(self):
        class Reshaping(Stack):
            def forward(self, x):
                u = self.embed(x)
                for layer in self.layers:
                    u = layer(u.flatten(0, 1).reshape(u.shape))
                return self.head(u)

        model = Reshaping(Pre)
        with pytest.raises(Unreadable, match=r"^layers\.0 to layers\.3 do not hand on the very tensor") as refused:
            record(model, states())
        assert record(model, states(), blocks=advised(str(refused.value), model)).scheme == "A→R"

    def test_what_changes_the_stream_between_layers_is_to_move_into_them_or_into_a_module(self):
        class Louder(nn.Module):
            def forward(self, u):
                return 1.1 * u

        class Between(Stack):
            def __init__(self, kind):
                super().__init__(kind)
                self.louder = Louder()

            def forward(self, x):
                u = self.embed(x)
                for layer in self.layers:
                    u = layer(self.louder(u) if self.louder else 1.1 * u)
                return self.head(u)

        class Own(Pre):
            def forward(self, u):
                return super().forward(1.1 * u)

        model = Between(Pre)
        model.louder = None
        with pytest.raises(Unreadable, match=r"hand on the very tensor.*; move what happens between them"):
            record(model, states())
        with pytest.raises(Unreadable, match=r"^between layers\.0 and layers\.1 something else.*; move it into"):
            record(model, states(), blocks=model.layers)
        moved = record(Stack(Own), states())
        assert moved.scheme == "S→A→R"
        assert moved.output.equal(model.eval()(states()))
        model = Between(Pre)
        as_module = record(model, states(), blocks=[model.louder, *model.layers])
        assert as_module.scheme == "S or A→R"
        assert as_module.output.equal(moved.output)

    def test_a_cache_of_keys_is_said_to_be_a_state(self):
        class Caching(Pre):
            def forward(self, u, cache):
                cache.append(self.one(u))
                return u + self.mix(torch.cat(cache[-2:], dim=1))[:, -u.shape[1] :]

        class Decoder(Stack):
            def forward(self, x):
                return super().forward(x, [])

        class Without(Caching):
            def forward(self, u):
                return super().forward(u, [])

        with pytest.raises(Unreadable, match=r"cache of keys and values.* must run without one$"):
            record(Decoder(Caching), states())
        assert record(Stack(Without), states()).scheme == "A"

    def test_a_batch_that_stands_second(self):
        def encoder(batch_first):
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
            return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        with pytest.raises(Unreadable, match=r"examples of a batch change each other.*, set batch_first=True$"):
            record(encoder(batch_first=False), states())
        assert record(encoder(batch_first=True), states()).scheme == "A→S→R→S"

        class Second(Pre):
            def forward(self, u):
                return super().forward(u.transpose(0, 1)).transpose(0, 1)

        with pytest.raises(Unreadable, match=r"let each layer take a field \(batch, token, feature\)$"):
            record(Stack(Second), states())
        assert record(Stack(Pre), states()).scheme == "A→R"

    @pytest.mark.parametrize("blocks", [None, ["layers.0", "layers.1"]])
    def test_tokens_without_an_axis_of_examples(self, blocks):
        model, x = Stack(Pre), states()[0]
        with pytest.raises(Unreadable, match=r"tensors \(token, feature\) were seen.*x\[None\]"):
            record(model, x, blocks=blocks)
        assert record(model, x[None], blocks=blocks).scheme == "A→R"

    @pytest.mark.parametrize("u", [states()[0], states()[..., :3], states()[:, None], 3.0, None])
    def test_a_layer_names_itself_where_it_is_given_another_kind_of_field(self, u):
        rec = record(Stack(Pre), states())
        with pytest.raises(ValueError, match=r"^layers\.2 maps a field .* like \(3, 7, 8\); u is "):
            rec.layer(2)(u)
        assert rec.layer(2)(states(batch=2, length=4)).shape == (2, 4, WIDTH)

    def test_what_mixes_tokens_on_the_stream_itself_is_no_norm(self):
        class Gated(Block):
            def forward(self, u):
                u = u * torch.sigmoid(u.mean(1, keepdim=True))
                return u + self.react(u)

        with pytest.raises(Unreadable, match=r"mixes tokens|plus branches"):
            record(Stack(Gated), states(batch=1))

    def test_a_hook_that_changes_a_layer_is_named(self):
        model = Stack(Pre)
        model.layers[1].register_forward_hook(lambda module, args, out: out + 1.0)
        with pytest.raises(Unreadable, match="hook"):
            record(model, states())

    def test_whole_layers_have_no_writes_to_rewrite(self):
        rec = record(Stack(Plain), states(), whole=True)
        assert rec.again(states() * 2).scheme == "A"
        with pytest.raises(ValueError, match="give step"):
            rec.rewrite(lambda at, u, delta: u)

    @pytest.mark.parametrize("given", [3.0, torch.zeros(2, 2)])
    def test_a_stream_of_another_kind_is_refused(self, given):
        rec = record(Stack(Pre), states())
        with pytest.raises(ValueError, match="write must give a field"):
            rec.rewrite(lambda at, u, delta: given)
        with pytest.raises(ValueError, match="step must give a field"):
            rec.rewrite(step=lambda n, u, f: given)

    def test_another_model_without_these_layers(self):
        with pytest.raises(ValueError, match=r"it has no layers\.0"):
            record(Stack(Pre), states()).again(model=nn.Linear(WIDTH, WIDTH))

    def test_no_example(self):
        with pytest.raises(ValueError, match="inputs must not be empty"):
            record(Stack(Pre), states()[:0])

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_model_that_was_scripted(self):
        with pytest.raises(ValueError, match="model must be the module itself"):
            record(torch.jit.script(nn.Linear(WIDTH, WIDTH)), states())

    def test_a_token_alone(self):
        with pytest.raises(Unreadable, match="two real tokens"):
            record(Stack(Pre), states(length=1))

    def test_a_layer_that_keeps_a_state(self):
        class Counting(Pre):
            def forward(self, u):
                self.calls = getattr(self, "calls", 0) + 1
                return super().forward(u) + 0.1 * self.calls * self.one(u)

        with pytest.raises(Unreadable, match="keeps a state"):
            record(Stack(Counting), states())

    def test_dropout_is_off_and_a_cache_too(self):
        torch.manual_seed(0)
        model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, attn_pdrop=0.5, resid_pdrop=0.5)).train()
        one, two = (record(model, {"input_ids": tokens()}).trajectory.final for _ in range(2))
        assert one.equal(two)
        assert model.training


def test_a_cache_that_is_switched_off_by_position():
    class Caching(Stack):
        def forward(self, x, use_cache=True):
            assert not use_cache
            return super().forward(x)

    assert record(Caching(Pre), (states(), False)).scheme == "A→R"
    assert record(Caching(Pre), states()).scheme == "A→R"


def test_a_model_without_numbers_is_refused():
    with pytest.raises(ValueError, match="on the device meta there are none"):
        record(Stack(Pre).to("meta"), states().to("meta"))


def test_stages_can_be_reduced_while_they_are_recorded():
    rec = record(Stack(Pre), states(), keep=lambda stages: [s.delta.norm().item() for s in stages])
    assert all(isinstance(size, float) for row in (*rec.stages, *rec.again(-states()).stages) for size in row)
    with pytest.raises(ValueError, match="keep"):
        rec.budget()


def check_same(one, other) -> None:
    """Two recordings are the same, to the last bit."""
    assert (one.scheme, one.names, one.notes) == (other.scheme, other.names, other.notes)
    assert one.trajectory.status == other.trajectory.status
    pairs = [*zip(one.trajectory.states, other.trajectory.states, strict=True)]
    pairs += zip(tensors(one.output), tensors(other.output), strict=True)
    for row, like in zip(one.stages, other.stages, strict=True):
        assert [(s.symbol, s.name, s.causal) for s in row] == [(s.symbol, s.name, s.causal) for s in like]
        pairs += [(getattr(s, x), getattr(t, x)) for s, t in zip(row, like, strict=True) for x in FIELDS]
    assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in pairs)


FIELDS = ("before", "after", "delta")


def changed(inputs):
    """Other inputs of the same kind: examples and tokens in another order."""
    if isinstance(inputs, dict):
        return {name: changed(x) for name, x in inputs.items()}
    return inputs.flip(0).flip(1)


@contextmanager
def runs_of(model: nn.Module, names):
    """How often the model and its layers run, also where only their `forward` is called."""
    modules, count = dict(model.named_modules()), Counter()

    def counted(name, forward):
        @wraps(forward)
        def run(*args, **kwargs):
            count[name] += 1
            return forward(*args, **kwargs)

        return run

    names = ("", *dict.fromkeys(names))
    for name in names:
        modules[name].forward = counted(name, modules[name].forward)
    yield count
    for name in names:
        del modules[name].forward


class Alternating(Stack):
    """A layer that works in place overwrites what the one before it gave."""

    def __init__(self):
        super().__init__(Pre)
        self.layers[1], self.layers[3] = InPlace(), SecondInPlace()


class Hesitating(Block):
    """Adds a branch more where it is told to."""

    def forward(self, u, more):
        v = u + self.mix(self.one(u))
        v = v + self.react(u) if more else v
        return v + self.react(self.two(v))


class Split(Block):
    """Adds a sum of two branches where it is told to, else one."""

    def forward(self, u, more):
        mixed, reacted = self.mix(u), self.react(u)
        return u + (mixed + reacted if more else reacted)


class TestAgain:
    @pytest.mark.parametrize("name", MODELS)
    def test_one_run_of_other_peoples_architectures_gives_what_record_gives(self, name):
        torch.manual_seed(0)
        model, inputs = MODELS[name][0]()
        rec, other = record(model, inputs), changed(inputs)
        with runs_of(model, rec.names) as count:
            found = rec.again(other)
        assert count == Counter(("", *rec.names))
        check_same(found, record(model, other))
        check_same(rec.again(inputs), rec)
        check_sums(found)

    @pytest.mark.parametrize("kind", [*OWN, Adapter, AddModule, ScaledSum], ids=lambda kind: kind.__name__)
    def test_of_every_kind_of_layer_too(self, kind):
        model, other = Stack(kind), Stack(kind)
        with torch.no_grad():
            other.embed.weight.mul_(2)
            other.layers[0].mix.qkv.weight.mul_(2)
        rec = record(model, states())
        with runs_of(model, rec.names) as count:
            found = rec.again(changed(states()))
        assert set(count.values()) == {1}
        check_same(found, record(model, changed(states())))
        check_same(rec.again(model=other), record(other, states()))
        assert found.layer(2)(found.trajectory.states[2]).equal(found.trajectory.states[3])
        assert found.rewrite(lambda at, u, delta: None).equal(found.output)

    @pytest.mark.parametrize(
        ("model", "whole"),
        [
            (Stack(Plain), True),
            (Stack(InPlace), True),
            (Stack(Pre, shared=True), False),
            (Alternating(), False),
            (Outside(), False),
            (Outside(mixed=False), False),
            (Beside(2, 3), False),
            (Stack(Post).bfloat16(), False),
        ],
    )
    def test_of_stacks_that_are_whole_shared_in_place_added_outside_or_beside_others(self, model, whole):
        x = states(dtype=next(model.parameters()).dtype)
        rec = record(model, x, whole=whole)
        with runs_of(model, rec.names) as count:
            found = rec.again(changed(x))
        assert count == Counter(("", *rec.names))
        check_same(found, record(model, changed(x), whole=whole))
        check_sums(found)
        assert x.equal(states(dtype=x.dtype))

    @pytest.mark.parametrize(("kind", "first"), [(Hesitating, True), (Hesitating, False), (Split, True)])
    def test_a_layer_that_writes_elsewhere_is_measured_anew(self, kind, first):
        model, yes, no = Stack(kind), (states(), torch.tensor(first)), (states(), torch.tensor(not first))
        rec = record(model, yes)
        found = rec.again(no)
        assert found.scheme != rec.scheme
        check_same(found, record(model, no))

    def test_the_parts_of_a_layer_still_have_to_sum_to_its_step(self):
        class Hiding(Pre):
            def forward(self, u, hide):
                u = super().forward(u)
                if hide:
                    u.data.mul_(1.0001)  # unseen by whoever counts changes
                return u

        rec = record(Stack(Hiding), (states(), torch.tensor(False)))
        with pytest.raises(Unreadable, match=r"the branches of layers\.0 miss its step by .*; take each layer as one"):
            rec.again((states(), torch.tensor(True)))

    def test_up_to_where_it_diverges(self):
        model, large = Stack(Pre), Stack(Pre)
        with torch.no_grad():
            for layer in (2, 0):
                large.layers[layer].react[2].weight.fill_(1e38)
                large.layers[layer].react[2].bias.fill_(3e38)
                fresh = record(large, states())
                found = record(model, states()).again(model=large)
                assert found.trajectory.status is Status.DIVERGED
                assert len(found.stages) == layer
                check_same(found, fresh)

    def test_layers_behind_a_divergence_are_read_where_the_next_inputs_reach_them(self):
        class Exploding(Pre):
            def forward(self, u):
                return super().forward(u) + torch.where(u.abs().amax() > 100, torch.inf, 0.0)

        model = Stack(Pre)
        model.layers[2] = Exploding()
        found = record(model, 1000 * states())
        assert found.trajectory.stopped_at == len(found.stages) + 1 == 3
        again = found.again(states())
        assert again.names == tuple(f"layers.{n}" for n in range(4))
        check_same(again, record(model, states()))

    def test_masks_of_the_inputs_are_theirs(self):
        mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
        model = Stack(Pre)
        rec = record(model, (states(), mask), mask=mask)
        assert rec.again().trajectory.mask.equal(mask)
        other = mask.flip(0)
        check_same(rec.again((states(), other), mask=other), record(model, (states(), other), mask=other))

    def test_more_examples_than_were_seen_are_looked_at(self):
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        rec = record(model, states(batch=3)[:, :1].transpose(0, 1))  # one example of three tokens, of which none mix
        with pytest.raises(Unreadable, match="examples of a batch change each other"):
            rec.again(states())

    def test_a_layer_that_is_called_in_another_way_is_run_again_to_see_whether_it_keeps_a_state(self):
        class Remembering(Pre):
            def forward(self, u, cache):
                seen = [] if cache is None else cache
                seen.append(self.one(u))
                u = u + self.mix(torch.cat(seen[-2:], dim=1))[:, -u.shape[1] :]
                return u + self.react(self.two(u))

        class Decoder(Stack):
            def forward(self, x, remember=None):
                u = self.embed(x)
                for layer in self.layers:
                    u = layer(u, None if remember is None else [])
                return self.head(u)

        rec = record(Decoder(Remembering), states())
        with pytest.raises(Unreadable, match=r"layers\.0 gives another output when it is run again by itself"):
            rec.again((states(), torch.ones(1)))

    def test_a_hook_that_changes_a_layer_of_another_model_is_named(self):
        rec = record(Stack(Pre), states())
        for change in (lambda out: out + 1.0, lambda out: out + torch.ones_like(out), lambda out: out.mul_(2)):
            model = Stack(Pre)
            model.layers[1].register_forward_hook(lambda module, args, out, change=change: change(out))
            with pytest.raises(Unreadable, match="hook"):
                rec.again(model=model)


def test_an_encoder_of_an_encoder_decoder_can_be_chosen():
    torch.manual_seed(0)
    model = hf.BartModel(hf.BartConfig(d_model=16, encoder_layers=1, decoder_layers=3, encoder_attention_heads=2,
                                       decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, **WORDS,
                                       decoder_start_token_id=2))  # fmt: skip
    rec = record(model, {"input_ids": tokens()})
    assert rec.names[0].startswith("decoder")
    assert rec.scheme == "A→S→R→S→R→S"  # to look at the encoder moves nothing between the tokens of the decoder
    assert record(model, {"input_ids": tokens()}, blocks=["encoder.layers.0"]).scheme == "A→S→R→S"


def test_a_model_of_bert_that_is_compiled_is_read_through():
    torch.manual_seed(0)
    model = torch.compile(hf.BertModel(hf.BertConfig(**SMALL, **WORDS)))
    assert record(model, {"input_ids": tokens()}).scheme == "A→S→R→S"


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch before 2.6 cannot hold its compiler back")
def test_layers_that_were_compiled_one_by_one_run_as_they_were_written():
    def refuse(graph, inputs):
        raise AssertionError("something was compiled")

    model, compiled = Stack(Pre), Stack(Pre)
    compiled.layers = nn.ModuleList(torch.compile(layer, backend=refuse) for layer in compiled.layers)
    plain, rec = record(model, states()), record(compiled, states())
    assert rec.scheme == plain.scheme
    assert rec.trajectory.final.equal(plain.trajectory.final)
    halves = [r.rewrite(lambda at, u, delta: u + delta / 2) for r in (plain, rec)]
    assert halves[0].equal(halves[1])
    gradients = [r.gradients(lambda out: out.square().sum()) for r in (plain, rec)]
    assert all(one.equal(other) for one, other in zip(*gradients, strict=True))
    assert rec.layer(1)(states()).equal(plain.layer(1)(states()))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_layers_that_are_computed_again_for_their_gradient_are_read(reentrant):
    class Checkpointed(Stack):
        def forward(self, x):
            u = self.embed(x)
            for layer in self.layers:
                u = checkpoint(layer, u, use_reentrant=reentrant)
            return self.head(u)

    plain, rec = record(Stack(Pre), states()), record(Checkpointed(Pre), states())
    assert rec.scheme == plain.scheme
    assert rec.trajectory.final.equal(plain.trajectory.final)
    if reentrant:  # runs its layers without a graph
        with pytest.raises(ValueError, match="use_reentrant=False"):
            rec.gradients(lambda out: out.square().sum())
    else:
        ours, theirs = (r.gradients(lambda out: out.square().sum()) for r in (rec, plain))
        assert all(one.equal(other) for one, other in zip(ours, theirs, strict=True))
