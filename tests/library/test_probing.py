"""probe: figures with known values, controls that change one thing, a report to be read, kept and gone on with."""

import copy
import html
import json
import math
import re
from itertools import pairwise

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from pdelab import probe, probing, record
from pdelab.probing import _control, _order, _shuffled_tokens, measured, permuted, redrawn
from pdelab.report import Report, Run, _side, _span

WIDTH = 6


class Linear(nn.Module):
    """u ↦ u + u M: a linear field, whose step doubling is known."""

    def __init__(self, scale: float = 0.1):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.normal_(self.map.weight, std=scale)

    def forward(self, u: Tensor) -> Tensor:
        return u + self.map(u)


class Drift(nn.Module):
    """u ↦ u + c: all layers move alike."""

    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, u: Tensor) -> Tensor:
        return u + self.c.expand_as(u) * (1 + 0 * u)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.react = nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH))

    def forward(self, u: Tensor) -> Tensor:
        n = self.norm(u)
        u = u + self.out(nn.functional.scaled_dot_product_attention(n, n, n))
        return u + self.react(self.norm(u))


class Stack(nn.Module):
    def __init__(self, kind=Attending, depth: int = 4):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(kind() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, u: Tensor) -> Tensor:
        for layer in self.layers:
            u = layer(u)
        return self.head(u)


def states(batch: int = 4, length: int = 9) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(2))


def quick(model: nn.Module, inputs=None, **options) -> Report:
    return probe(model, states() if inputs is None else inputs, progress=False, **{"sampled": 2, **options})


def test_step_doubling_of_a_linear_layer_is_a_quarter_of_the_square_of_its_matrix():
    model = Stack(Linear).double()
    run = measured(record(model, states().double()), sampled=0)
    u = states().double()
    M = model.layers[0].map.weight.T
    wanted = (u @ M @ M / 4).norm(dim=-1) / (u @ M).norm(dim=-1)
    assert run.layers["doubling"][0][1] == pytest.approx(wanted.quantile(0.5).item(), rel=1e-9)
    assert run.layers["step"][0][2] == pytest.approx(((u @ M).norm(dim=-1) / u.norm(dim=-1)).quantile(0.95).item())


def test_linear_layers_commute_as_far_as_their_matrices_do():
    model = Stack(Linear).double()
    run = measured(record(model, states().double()), sampled=0)
    u = states().double()
    M, N = (layer.map.weight.T for layer in model.layers[:2])
    first, second = u @ M, (u + u @ M) @ N
    wanted = (u @ (M @ N - N @ M)).norm(dim=-1) / (first.norm(dim=-1) + second.norm(dim=-1))
    assert run.layers["commutator"][0][1] == pytest.approx(wanted.quantile(0.5).item(), rel=1e-9)
    assert run.layers["smoothness"][3] == []


def test_a_steady_drift_is_straight_smooth_and_resolved():
    run = measured(record(Stack(Drift).double(), states().double()), sampled=0)
    assert run.whole["straightness"] == pytest.approx([1, 1, 1])
    assert run.whole["straightness of independent steps"] == pytest.approx([0.5])  # 1/√4
    assert run.typical("smoothness") == pytest.approx(1)
    assert run.typical("doubling") == pytest.approx(0, abs=1e-12)
    assert run.typical("angle") == pytest.approx(0, abs=1e-5)


def test_energies_of_the_terms_add_up_to_the_growth_of_the_state():
    run = measured(record(Stack().double(), states().double()), sampled=0)
    rec = record(Stack().double(), states().double())
    energy = torch.stack([u.square().sum(-1).mean() / 2 for u in rec.trajectory.states])
    for layer, gained in enumerate(energy.diff()):
        total = sum(run.layers[f"energy {symbol}"][layer][0] for symbol in run.symbols())
        assert total == pytest.approx(gained.item(), rel=1e-9)


def test_a_token_that_gets_everything_is_named():
    model = Stack()

    def write(module, args, out):
        out = out.clone()
        out[:, 3] += 50
        return out

    model.layers[2].react.register_forward_hook(write)
    report = quick(model, controls=("random",))
    symbol, layer, share, token, at = report.own.largest_write()
    assert (symbol, layer, token) == ("R", 2, 3)
    assert share > 0.95
    assert at > 0.95
    assert any(words.startswith("R of layer 2 writes") and "token 3" in words for words in report.findings())
    (words,) = [words for words in report.findings() if "five times as long as the median" in words]
    assert words.startswith("2 of 4 layers leave")
    assert "(random " in words
    assert "the first is layer 2: token 3 in 4 of 4 examples" in words


def test_figures_are_what_they_say():
    model = Stack().double()
    u = states().double()
    rec = record(model, u)
    run = measured(rec, sampled=4)
    one, two = rec.trajectory.states[:2]
    layer = model.layers[0]
    with torch.no_grad():
        n = layer.norm(one)
        mixed = layer.out(nn.functional.scaled_dot_product_attention(n, n, n))
        summed = one + mixed + layer.react(n)
    size = (two - one).norm(dim=-1)
    middle = lambda x: x.flatten().quantile(0.5).item()  # noqa: E731
    assert run.middle("sum or sweep")[0] == pytest.approx(middle((summed - two).norm(dim=-1) / size))
    cosines = nn.functional.cosine_similarity(rec.trajectory.states[3], one, dim=-1)
    assert run.middle("fidelity")[2] == pytest.approx(middle(cosines))
    spread = (two - two.mean(1, keepdim=True)).flatten(1).norm(dim=1) / two.flatten(1).norm(dim=1)
    assert run.middle("non-uniformity")[0] == pytest.approx(spread.mean().item())
    assert run.middle("non-uniformity, usual tokens")[0] == pytest.approx(spread.mean().item())
    values = torch.linalg.eigvalsh(two.flatten(0, 1).T.cov())
    assert run.middle("dimension")[0] == pytest.approx((values.sum() ** 2 / values.square().sum()).item())

    dense = [torch.autograd.functional.jacobian(layer, x[None])[0, :, :, 0].reshape(54, 54) for x in one]
    rates = [torch.linalg.eigvalsh((J + J.T) / 2)[-1] - 1 for J in dense]
    assert run.middle("log norm")[0] == pytest.approx(torch.stack(rates).quantile(0.5).item(), rel=0.02)
    worst = [torch.linalg.matrix_norm(J, 2) for J in dense]
    assert run.middle("growth, worst")[0] == pytest.approx(torch.stack(worst).quantile(0.5).item(), rel=0.02)
    whole = [J.norm() / 54**0.5 for J in dense]
    assert run.middle("growth, random")[0] == pytest.approx(torch.stack(whole).median().item(), rel=0.2)


def test_outliers_are_left_out_of_the_usual_tokens():
    u = states().double()
    u[:, 0] *= 100
    run = measured(record(Stack(Drift).double(), u), sampled=0)
    rest = u[:, 1:] + 1
    spread = (rest - rest.mean(1, keepdim=True)).flatten(1).norm(dim=1) / rest.flatten(1).norm(dim=1)
    assert run.middle("non-uniformity, usual tokens")[0] == pytest.approx(spread.mean().item())
    assert run.middle("outlier tokens")[0] == pytest.approx(1 / 9)


def test_energy_that_is_taken_away_is_counted():
    model = Stack(Linear)
    with torch.no_grad():
        for layer in model.layers:
            layer.map.weight.copy_(-0.1 * torch.eye(WIDTH))
    assert any(w.startswith("R takes energy away in 4 of 4 layers") for w in quick(model, controls=()).findings())


def test_transport_is_gradient_times_step_and_dropping_is_done_for_real():
    model = Stack().double()
    u = states().double()
    report = probe(model, u, loss=lambda out: out.square().mean(), controls=(), sampled=0, progress=False)
    rec = record(model, u)
    gradients = rec.gradients(lambda out: out.square().mean())
    steps = [after - before for before, after in pairwise(rec.trajectory.states)]
    wanted = [(g.norm(dim=-1) * s.norm(dim=-1)).sum().item() for g, s in zip(gradients[1:], steps, strict=True)]
    assert report.own.middle("transport") == pytest.approx(wanted)
    (least,) = report.own.whole["layers carrying least"]
    with torch.no_grad():
        v = u
        for number, layer in enumerate(model.layers):
            v = v if number == least else layer(v)
        wanted = model.head(v).square().mean().item()
    assert report.own.whole["loss without them"] == pytest.approx([wanted])
    assert len(report.own.whole["loss without as many by chance"]) == 3  # every other layer


@pytest.mark.parametrize(("without", "better"), [(1.1, True), (1.2, False), (1.5, False), (9.0, False)])
def test_layers_that_carry_least_are_told_from_layers_by_chance_only_if_all_of_these_cost_more(without, better):
    whole = {"loss": [1.0], "layers carrying least": [0], "loss without them": [without]}
    own = Run(layers={}, whole=whole | {"loss without as many by chance": [1.2, 2.0, 1.4]})
    (words,) = Report("M", "A", ("0", "1"), 1, 2, "finished", {"model": own})._of_the_loss()
    assert ("no better than chance" in words) != better


def test_one_layer_alone_has_no_others_to_leave_out():
    model = Stack(depth=1)
    text = str(quick(model, blocks=model.layers, loss=lambda out: out.square().mean()))
    assert "which carries least" in text
    assert "draws)" not in text
    assert "No control 'shuffled layers': there is one layer alone." in " ".join(text.split())


def test_equal_layers_have_no_order_and_whole_layers_no_sum():
    model = Stack()
    for layer in model.layers[1:]:
        layer.load_state_dict(model.layers[0].state_dict())
    assert "same weights" in quick(model, sampled=0).runs["shuffled layers"].note
    report = quick(Stack(), whole=True, sampled=0)
    assert report.scheme == "A"
    assert math.isnan(report.own.typical("sum or sweep"))


def test_energy_is_not_said_to_be_written_where_it_is_taken_away():
    model = Stack(Linear)
    with torch.no_grad():
        for layer in model.layers:
            layer.map.weight.copy_(-0.1 * torch.eye(WIDTH))
    assert quick(model, controls=()).own.largest_write() is None


class TestControls:
    def test_permuted_weights_have_the_same_entries_elsewhere(self):
        model = Stack()
        other = permuted(model, 1)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert p.flatten().sort().values.equal(q.flatten().sort().values)
        assert not model.layers[0].out.weight.equal(other.layers[0].out.weight)

    def test_random_weights_are_new_everywhere_and_follow_from_the_seed(self):
        model = Stack()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(3.0)
        one, two, other = redrawn(model, 1), redrawn(model, 1), redrawn(model, 2)
        for p, q, r, was in zip(*(m.parameters() for m in (one, two, other, model)), strict=True):
            assert p.equal(q)
            assert not p.equal(was) or not was.any()
            assert not p.equal(r) or p.ndim == 1  # the gains of a norm begin at 1
        bound = WIDTH**-0.5  # of nn.Linear
        assert 0.8 * bound < one.layers[0].out.weight.abs().max() <= bound

    def test_an_untrained_network_is_like_its_control(self):
        torch.manual_seed(3)
        model = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=48, n_layer=6, n_head=4, vocab_size=99))
        ids = torch.randint(99, (4, 24), generator=torch.Generator().manual_seed(0))
        report = quick(model, {"input_ids": ids}, controls=("random",), sampled=0)
        own, control = report.own, report.runs["random"]
        for name in ("step", "doubling", "fidelity", "sum or sweep"):
            assert control.typical(name) == pytest.approx(own.typical(name), rel=0.25)

    def test_scales_without_a_beginning_of_their_own_stay(self):
        class Scaled(Attending):
            def __init__(self):
                super().__init__()
                self.gamma = nn.Parameter(torch.full((WIDTH,), 0.3))

            def forward(self, u):
                return u + self.gamma * self.react(self.norm(u))

        other = redrawn(Stack(Scaled), 0)
        assert other.layers[0].gamma.equal(torch.full((WIDTH,), 0.3))
        report = quick(Stack(Scaled), controls=("random", "permuted"), sampled=0)
        said = "random keeps 4 weights as trained (layers.0.gamma, layers.1.gamma, layers.2.gamma, …)."
        assert said in " ".join(str(report).split())
        runs = json.loads(report.to_json())["runs"]
        assert runs["random"]["kept"] == [f"layers.{n}.gamma" for n in range(4)]
        assert runs["permuted"]["kept"] == quick(Stack(), controls=("random",), sampled=0).runs["random"].kept == []

    def test_a_single_weight_of_two_axes_stays_too(self):
        class Scaled(Linear):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.ones(1, 1))

            def forward(self, u):
                return u + self.gain * self.map(u)

        assert redrawn(Stack(Scaled), 0).layers[0].gain.item() == 1

    def test_a_shared_weight_is_drawn_once_by_the_module_that_holds_it_first(self):
        class Language(Stack):
            def __init__(self):
                super().__init__()
                self.e, self.h = nn.Embedding(500, WIDTH), nn.Linear(WIDTH, 500)
                self.order = nn.ModuleList([self.h])  # its place in `modules` does not count twice
                self.h.weight = self.e.weight

        other = redrawn(Language(), 0)
        assert other.h.weight is other.e.weight
        assert other.e.weight.std().item() == pytest.approx(1, rel=0.1)

    def test_parts_are_drawn_before_the_whole_as_in_construction(self):
        torch.manual_seed(0)
        model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        other = redrawn(model, 0)
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            if p.ndim > 1:
                assert not q.equal(p)
            assert q.std().item() == pytest.approx(p.std().item(), rel=0.15, abs=1e-3) or p.ndim == 1, name

    def test_weights_that_are_computed_are_drawn_too_or_named(self):
        class Normed(Attending):
            def __init__(self):
                super().__init__()
                self.out = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

        class Doubled(nn.Module):
            def forward(self, weight):
                return 2 * weight

        torch.manual_seed(1)
        plain, model = nn.Linear(WIDTH, WIDTH), Stack(Normed)
        with torch.no_grad():
            for layer in model.layers:
                layer.out.parametrizations.weight.original0.mul_(7)
        layer = redrawn(model, 0).layers[0].out
        assert not layer.weight.equal(model.layers[0].out.weight)
        assert layer.weight.std().item() == pytest.approx(plain.weight.std().item(), rel=0.3)
        assert layer.weight.norm(dim=1).allclose(layer.parametrizations.weight.original0.flatten())
        assert not quick(model, controls=("random",), sampled=0).runs["random"].kept
        nn.utils.parametrize.register_parametrization(model.layers[1].react[0], "weight", Doubled())
        kept = quick(model, controls=("random",), sampled=0).runs["random"].kept
        assert kept == ["layers.1.react.0.parametrizations.weight.original"]

    @pytest.mark.filterwarnings("ignore:.*weight_norm.*")
    def test_the_old_weight_norm_can_be_copied_and_what_it_keeps_is_named(self):
        model = Stack()
        nn.utils.weight_norm(model.layers[0].out)
        model(states())  # leaves a weight with a graph
        report = quick(model)
        assert report.runs["random"].kept == ["layers.0.out.weight_g", "layers.0.out.weight_v"]
        assert not report.runs["permuted"].note

    def test_untrained_networks_can_be_given(self):
        def fresh(seed):
            seeds.append(seed)
            model = Stack(Linear)
            with torch.no_grad():
                for number, layer in enumerate(model.layers):
                    layer.map.weight.copy_((seed % 7 + number) / 100 * torch.eye(WIDTH))
            return model.double()

        seeds = []
        report = quick(Stack(Linear), controls=("random",), fresh=fresh, sampled=0)
        assert len({*seeds}) == 4  # one by which it is known again, and three draws
        for seed, run in zip(seeds[1:], (report.runs["random"], *report.draws["random"]), strict=True):
            steps = [(seed % 7 + number) / 100 for number in range(4)]
            assert run.middle("step") == pytest.approx(steps, rel=1e-4)
            assert not run.kept
        assert report.made["fresh"].endswith("fresh")
        model = Stack()
        with pytest.raises(ValueError, match="fresh must give a new model"):
            quick(model, fresh=lambda seed: model)

    def test_the_tokens_that_are_shuffled_are_those_that_the_stream_comes_from(self):
        torch.manual_seed(0)
        model = nn.Transformer(WIDTH, 2, 2, 3, 16, batch_first=True)
        source, target = states(), states(8)[4:]
        report = quick(model, (source, target), controls=("shuffled tokens",), sampled=0)
        assert report.names[0] == "decoder.layers.0"
        rec = record(model, (source, target))
        found = _control("shuffled tokens", rec, (source, target), 0)
        u, v = rec.trajectory.states[0], found.trajectory.states[0]
        assert not v.equal(u)
        assert v.sort(1).values.equal(u.sort(1).values)
        t5 = hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=3, num_heads=2)
        model, ids = hf.T5Model(t5), torch.arange(36).reshape(4, 9)
        given = {"input_ids": ids, "decoder_input_ids": ids.flip(1) + 1}
        rec = record(model, given)
        found = _control("shuffled tokens", rec, given, 0)
        assert rec.names[0].startswith("decoder")
        assert not found.trajectory.states[0].equal(rec.trajectory.states[0])

    def test_layers_are_shuffled_and_none_is_lost(self):
        model = Stack()
        rec = record(model, states())
        other = _control("shuffled layers", rec, states(), 0)
        before, after = ([layer.out.weight.sum().item() for layer in m.layers] for m in (model, other.model))
        assert sorted(before) == sorted(after)
        assert [before[k] for k in _order(4, 0)] == after

    @pytest.mark.parametrize("layers", [2, 4, 5, 6, 12, 30])
    def test_no_layer_keeps_its_place_or_the_one_before_it(self, layers):
        for seed in range(5):
            order = _order(layers, seed)
            assert sorted(order) == list(range(layers))
            assert all(layer != place for place, layer in enumerate(order))
            assert all(after != before + 1 for before, after in pairwise(order))
        assert _order(layers, 3) == _order(layers, 3)

    def test_of_three_layers_none_keeps_its_place(self):
        assert {tuple(_order(3, seed)) for seed in range(20)} == {(1, 2, 0), (2, 0, 1)}
        assert _order(1, 0) == [0]

    def test_the_order_of_shuffled_layers_is_in_the_report(self):
        report = quick(Stack(), controls=("random", "shuffled layers"), sampled=0)
        order = _order(4, 0)
        assert f"shuffled layers: their order is {', '.join(map(str, order))}." in " ".join(str(report).split())
        runs = json.loads(report.to_json())["runs"]
        assert (runs["shuffled layers"]["order"], runs["random"]["order"]) == (order, [])

    def test_tokens_are_shuffled_within_their_sequence_and_padding_stays(self):
        mask = torch.arange(9) < torch.tensor([[9], [4], [2], [6]])
        rec = record(Stack(), states(), mask=mask)
        ids = torch.arange(36).reshape(4, 9)
        found = next(_shuffled_tokens({"input_ids": ids, "attention_mask": mask.long()}, rec, 5))["input_ids"]
        assert found[~mask].equal(ids[~mask])
        for row, before, real in zip(found, ids, mask, strict=True):
            assert row[real].sort().values.equal(before[real])
        assert not found.equal(ids)
        assert next(_shuffled_tokens(({"ids": ids}, "more"), rec, 5))[0]["ids"].equal(
            found
        )  # a mapping as first argument

    def test_every_entry_is_tried_for_tokens_but_masks_and_positions(self):
        class Placed(Stack):
            def forward(self, scale, positions, u, pad_mask=None):
                return super().forward(scale * u + 0 * positions.unsqueeze(-1))

        u, places = states(), torch.arange(9.0).repeat(4, 1)
        given = (torch.ones(1, 1, 1), places, u, places > 4)
        rec = record(Placed(), given)
        (found,) = _shuffled_tokens(given, rec, 5)
        assert found[2].sort(1).values.equal(u.sort(1).values)
        assert not found[2].equal(u)
        assert all(found[n] is given[n] for n in (0, 1, 3))
        named = dict(zip(("scale", "positions", "u", "pad_mask"), given, strict=True))
        assert next(_shuffled_tokens(named, rec, 5))["u"].equal(found[2])
        report = quick(Placed(), given, controls=("shuffled tokens",), sampled=0)
        assert not report.runs["shuffled tokens"].note

    def test_a_stream_with_a_token_more_than_the_input_is_said_in_numbers(self):
        class Registered(Stack):
            def forward(self, u):
                return super().forward(torch.cat([torch.ones(len(u), 1, WIDTH), u], 1))

        note = quick(Registered(), controls=("shuffled tokens",), sampled=0).runs["shuffled tokens"].note
        assert note == "no input has the stream's 10 tokens; the inputs' shapes are (4, 9, 6)"

    def test_what_a_model_cannot_have_is_said(self):
        class Shared(Stack):
            def forward(self, u):
                for _ in range(3):
                    u = self.layers[0](u)
                return self.head(u)

        report = quick(Shared())
        assert "no order" in report.runs["shuffled layers"].note
        assert "No control 'shuffled layers'" in " ".join(str(report).split())


def test_the_model_is_afterwards_what_it_was():
    model = Stack().train()
    before = copy.deepcopy(model.state_dict())
    quick(model, loss=lambda out: out.mean())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Counting(Attending):
    """A layer with a buffer that counts in place, one that is made anew, and noise that training would have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, u):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * u.detach().mean((0, 1))
        torch.rand(1)
        return super().forward(u)


@pytest.mark.parametrize("fails", [False, True, KeyboardInterrupt])
def test_buffers_and_random_numbers_are_afterwards_what_they_were_also_if_it_fails(fails, monkeypatch):
    model = Stack(Counting).train()
    model.layers[1].eval()
    model.layers[0].register_forward_hook(lambda *args: None)
    model.head.weight.grad = torch.ones_like(model.head.weight)

    def state():
        held = [(part.training, dict(part._forward_hooks), dict(part._forward_pre_hooks)) for part in model.modules()]
        return held, [p.grad is None or p.grad.clone().sum().item() for p in model.parameters()]

    before, kept, buffers, noise = state(), copy.deepcopy(model.state_dict()), [*model.buffers()], torch.get_rng_state()
    if fails:
        kind = fails if isinstance(fails, type) else RuntimeError

        def stopped(run, states, real):
            raise kind

        monkeypatch.setattr(probing, "_path", stopped)
        with pytest.raises(kind):
            quick(model, loss=lambda out: out.mean())
    else:
        quick(model, loss=lambda out: out.mean() + 0 * torch.rand(1).sum())
    assert state() == before
    assert all(x.equal(kept[name]) for name, x in model.state_dict().items())
    assert all(x is y for x, y in zip(model.buffers(), buffers, strict=True))
    assert torch.get_rng_state().equal(noise)


def test_dropout_has_no_part_in_a_report_of_a_model_in_training():
    class Dropping(Attending):
        def forward(self, u: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(u) - u, 0.5, self.training) + u

    one, two = (quick(Stack(Dropping).train(mode), controls=()) for mode in (False, True))
    assert one.to_json() == two.to_json()


def test_half_precision_gives_the_figures_of_single_precision_to_its_rounding():
    half, single = (quick(Stack().to(dtype), states().to(dtype)) for dtype in (torch.bfloat16, torch.float32))
    for name in ("step", "doubling", "smoothness", "towards the mean", "growth, random", "diffusivity"):
        assert half.own.typical(name) == pytest.approx(single.own.typical(name), rel=0.05, abs=5e-3)


def test_a_report_is_text_page_and_data(tmp_path):
    report = quick(Stack(), loss=lambda out: out.square().mean())
    text = str(report)
    assert max(map(len, text.splitlines())) < 120
    for words in report.findings():
        assert words in " ".join(text.split())
    report.save(tmp_path / "new" / "report.html")
    page = (tmp_path / "new" / "report.html").read_text()
    with pytest.raises(ValueError, match=r"end in \.html or \.json"):
        report.save(tmp_path / "report.txt")
    assert page.count("<svg") == 6 + 5  # a panel each, which stand below each other on a phone; and lines explained
    assert "#000000" not in page  # what is drawn in black would not be seen in the dark
    ids = re.findall(r'id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href=\"|url\()#([^\")]*)", page)) <= set(ids)
    assert not re.search(r"(src|href)=.(?!#)", page)  # nothing is loaded from elsewhere
    report.save(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert set(data["runs"]) == {"model", "random", "permuted", "shuffled layers", "shuffled tokens"}
    assert data["runs"]["model"]["layers"]["smoothness"][3] is None
    assert data["runs"]["model"]["layers"]["angle"][0] is None
    assert data["runs"]["permuted"]["layers"]["log norm"] == [None] * 4
    others = data["no different with random or permuted weights"]
    assert sorted([*data["findings"], *others]) == sorted(report.findings())
    assert [len(data["draws"][name]) for name in ("random", "permuted")] == [2, 2]
    made = {"seed": 0, "sampled": 2, "draws": 3, "dtype": "float32", "device": "cpu", "blocks": "found", "mask": "none"}
    made |= {"first layer": "layers.0", "last layer": "layers.3", "torch": torch.__version__, "fresh": "none"}
    assert data["made"].items() >= made.items()
    assert data["made"]["loss"].endswith("<lambda>")
    for form in (text, page):
        assert f"torch {torch.__version__}, date {data['made']['date']}, seed 0" in " ".join(form.split())
    assert len(report.table) == 4
    assert report.table[1]["name"] == "layers.1"


def test_the_straightness_of_each_control_stands_beside_its_own_baseline():
    report = quick(Stack(), controls=("random", "permuted"), sampled=0)
    (words,) = [words for words in report.findings() if "straightness" in words]
    for name in ("random", "permuted"):
        chance = report.runs[name].typical("straightness of independent steps")
        found = [run.typical("straightness") for run in (report.runs[name], *report.draws[name])]
        assert f"{name} {_span(found, '{:.2f}')}, independent steps {chance:.2f}" in words


def test_a_small_loss_keeps_its_digits():
    report = quick(Stack(), controls=(), sampled=0, loss=lambda out: 1e-4 * out.square().mean())
    (words,) = [words for words in report.findings() if words.startswith("The loss is")]
    loss = float(re.search(r"The loss is (\S+);", words)[1])
    assert 0 < loss < 1e-3
    assert loss == pytest.approx(report.own.whole["loss"][0], rel=1e-2)


def drawn(own: dict, **controls: list[dict]) -> Report:
    """A report of figures of the whole network, and of as many draws of its controls as there are."""
    runs = {name: [Run(whole={k: [x] for k, x in row.items()}) for row in rows] for name, rows in controls.items()}
    draws = {name: found[1:] for name, found in runs.items()}
    own = {"model": Run(whole={k: [x] for k, x in own.items()})}
    return Report(
        "Net", "A", ("one",), 4, 36, "finished", own | {name: found[0] for name, found in runs.items()}, draws=draws
    )


def test_what_networks_without_training_have_as_well_is_not_said_to_stand_out():
    own = {"smoothness": 0.5, "straightness": 0.52, "doubling": 0.25, "sum or sweep": 0.3}
    random, permuted = ([{"smoothness": x, "straightness": x + 0.5} for x in (0.0, 0.05, 0.1)] for _ in range(2))
    for row in random:
        row |= {"doubling": 0.06, "sum or sweep": 0.3}
    for row in permuted:
        row |= {"doubling": 0.32, "sum or sweep": 0.8}
    report = drawn(own, random=random, permuted=permuted)
    (apart, between), (alike,) = sorted(report.outstanding(), reverse=True), report.ordinary()
    assert "Two half steps in place of one change the median layer's step by 0.25" in apart
    assert apart.endswith("(random 0.06, permuted 0.32): between the controls.")
    assert "cosine of 0.50 with this one's (random 0.00 to 0.10, permuted 0.00 to 0.10)." in between
    assert "straightness 0.52" in alike
    sections = report.sections()
    assert [*sections][:3] == [
        "What stands out",
        "What one of the controls has too",
        "No different with random or permuted weights",
    ]
    assert sections["What one of the controls has too"][0].endswith("0.80): as with random weights.")
    assert json.loads(report.to_json())["no different with random or permuted weights"] == [alike]
    alone = drawn(own)
    assert not alone.ordinary()
    assert "What was found" in alone.sections()
    once = drawn(own, random=random[:1], permuted=permuted[:1])
    assert not once.outstanding()
    assert len(once.sections()["Not judged, which takes two draws of a control"]) == 4


def test_a_number_stands_out_if_it_is_farther_from_the_draws_than_they_are_from_each_other():
    assert [_side(x, [1.0, 2.0, 1.5], 0.01) for x in (3.1, 2.9, 1.5, 0.1, -0.1)] == [1, 0, 0, 0, -1]
    assert [_side(x, [1.0, 1.0], 0.01) for x in (1.12, 1.1, 0.9)] == [1, 0, -1]  # a tenth of the number
    assert [_side(x, [0.0, 0.0], least) for x, least in ((0.02, 0.01), (2, 2.0), (3, 2.0))] == [1, 0, 1]
    draws = torch.randn(20000, 7, generator=torch.Generator().manual_seed(0)).double() * 1e9
    rate = sum(bool(_side(x, row[:3], 0.01) and _side(x, row[3:], 0.01)) for x, *row in draws.tolist()) / 20000
    assert 0.02 < rate < 0.035  # as the docstring says


def test_of_networks_without_training_hardly_anything_stands_out(capsys):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(8))

        def forward(self, u):
            for layer in self.layers:
                u = layer(u)
            return u

    found, said = [], 0
    for seed in range(6):
        torch.manual_seed(seed)
        report = probe(Encoder(), torch.randn(4, 12, 32), sampled=0, progress=False)
        found += report.outstanding()
        said += len(report.findings())
    with capsys.disabled():
        print(f" {len(found)} of {said} sentences on 6 networks ", end="")
    assert len(found) <= 0.1 * said  # one draw of each control and a margin gave 7 of 48


def test_layers_that_are_not_read_are_named_in_every_form_of_the_report():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Stack(depth=4).layers, Stack(depth=2).layers

        def forward(self, u):
            for layer in self.first:
                u = layer(u)
            u = 2 * u
            for layer in self.second:
                u = layer(u)
            return u

    report = quick(Both(), controls=(), sampled=0)
    (note,) = report.notes
    assert note.startswith("not read: second.0 to second.1")
    assert note in " ".join(str(report).partition("layer  ")[0].split())
    assert f"<p>{note}</p>" in html.unescape(report.to_html())
    assert json.loads(report.to_json())["notes"] == [note]
    assert quick(Stack(), controls=(), sampled=0).notes == ()


def test_a_report_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    def stopped(model, seed):
        raise KeyboardInterrupt

    monkeypatch.setattr(probing, "permuted", stopped)
    with pytest.raises(KeyboardInterrupt):
        quick(Stack(), folder=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 1 + 3  # the network, and the draws of its first control
    monkeypatch.undo()
    done = []
    monkeypatch.setattr(probing, "measured", lambda *args, plain=measured: done.append(1) or plain(*args))
    report = quick(Stack(), folder=tmp_path)
    assert len(done) == 3 + 2  # of nine
    monkeypatch.undo()
    assert json.loads(report.to_json()) == json.loads(quick(Stack()).to_json())
    other = Stack()
    with torch.no_grad():
        other.head.weight.add_(1.0)
    quick(other, folder=tmp_path, controls=())
    assert len(list(tmp_path.glob("*.json"))) == 10  # another network is not taken for this one
    for factor in (1, 2):
        quick(other, folder=tmp_path, controls=(), loss=lambda out, f=factor: f * out.mean())
    assert len(list(tmp_path.glob("*.json"))) == 12  # nor another loss
    for k in range(2):  # nor one of the same value
        quick(other, folder=tmp_path, controls=(), loss=lambda out, k=k: out[..., k].mean() - out[..., k].mean().item())
    assert len(list(tmp_path.glob("*.json"))) == 14


def test_a_part_that_is_damaged_is_named_and_measured_anew(tmp_path):
    report = quick(Stack(), folder=tmp_path)
    for words in ("{", '{"unknown": 3}'):
        (part,) = tmp_path.glob("permuted-2-*.json")
        part.write_text(words)
        with pytest.warns(UserWarning, match=part.name):
            again = quick(Stack(), folder=tmp_path)
        assert again.to_json() == report.to_json()
        assert json.loads(part.read_text())["layers"]


def test_another_mask_is_not_taken_for_this_one(tmp_path):
    mask = torch.arange(9) < torch.tensor([[9], [9], [4], [4]])
    for given in (None, mask):
        kept = probe(Stack(), states(), mask=given, controls=(), sampled=0, progress=False, folder=tmp_path)
        fresh = probe(Stack(), states(), mask=given, controls=(), sampled=0, progress=False)
        assert kept.to_json() == fresh.to_json()


def test_a_network_that_diverges_is_reported_up_to_there():
    model = Stack()
    with torch.no_grad():
        model.layers[2].react[2].bias.fill_(3e38)
        model.layers[2].react[2].weight.fill_(3e38)
    report = quick(model, loss=lambda out: out.mean())
    assert report.status == "diverged"
    assert len(report.table) == 2
    assert report.findings()[0].startswith("Layer 2 gives NaN or infinite numbers")
    assert not any("loss" in words for words in report.findings())
    json.loads(report.to_json())


def test_layers_that_explode_are_reported_with_derivatives_that_do_not_exist():
    class Exploding(Linear):
        def forward(self, u):
            return u + 1e25 * self.map(u) ** 2

    model = Stack(Exploding, depth=2)
    report = quick(model, controls=("random",), loss=lambda out: out.sum() * 0 + 1)
    run = report.own
    assert math.isnan(run.middle("log norm")[-1])
    report.to_html()
    json.loads(report.to_json())
    assert str(report)


def test_the_median_of_two_examples_is_half_their_sum(monkeypatch):
    model, u = Stack().double(), states(2).double()
    for name in ("logarithmic_norm", "lipschitz", "random_growth"):
        monkeypatch.setattr(probing, name, lambda *args, **options: torch.tensor([1.0, 4.0]))
    both, one, two = (measured(record(model, x), sampled=4) for x in (u, u[:1], u[1:]))
    for name in ("log norm", "growth, worst", "growth, random"):
        assert both.middle(name) == [2.5] * 4
    for x, y, z in zip(*(run.middle("towards the mean") for run in (both, one, two)), strict=True):
        assert x == pytest.approx((y + z) / 2)


def test_growth_of_both_kinds_is_given_for_random_weights():
    report = quick(Stack(), controls=("random", "permuted"))
    (words,) = [words for words in report.findings() if words.startswith("A small nudge")]
    random, worst = (report.runs["random"].typical(f"growth, {kind}") for kind in ("random", "worst"))
    assert words.endswith(f"(with random weights {random:.2f} and at least {worst:.2f}).")
    assert words in report.sections()["Not judged, which takes two draws of a control"]


def test_padding_changes_no_figure():
    model = Stack(Linear)  # of each token alone: padding cannot be seen
    u, mask = states(), torch.arange(9) < torch.tensor([[9], [4], [2], [6]])
    other = torch.where(mask.unsqueeze(-1), u, 1e3)
    one, two = (measured(record(model, x, mask=mask), sampled=0) for x in (u, other))
    for name in ("step", "doubling", "energy R"):
        torch.testing.assert_close(torch.tensor(one.layers[name]), torch.tensor(two.layers[name]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"controls": ("nothing",)}, "controls"),
        ({"controls": "random"}, "controls"),
        ({"sampled": -1}, "sampled"),
        ({"seed": 1.5}, "seed"),
        ({"loss": 3}, "loss"),
        ({"loss": lambda out: out}, "one number"),
        ({"loss": lambda out: out.mean() * math.nan}, "loss must give a finite number"),
        ({"draws": 0}, "draws"),
        ({"fresh": 3}, "fresh"),
        ({"fresh": lambda seed: 3}, "what fresh gives must be a Module"),
    ],
)
def test_wrong_options_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        quick(Stack(), **options)


def test_few_examples_are_called_few_and_more_are_advised():
    assert "at least 8" in quick(Stack(), states(2), controls=()).advice()
    advice = quick(Stack(), states(16), controls=()).advice()
    assert "From 16 examples" in advice
    assert "64 examples would halve that" in advice


def test_a_figure_not_measured_is_nan_and_shown_as_a_dot():
    run = Run()
    run.add(0, "step", [0.1, 0.2, 0.3])
    run.skip(1, "step")
    assert run.middle("step")[0] == 0.2
    assert math.isnan(run.middle("step")[1])
    assert run.typical("step") == 0.2
