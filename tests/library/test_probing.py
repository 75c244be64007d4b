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
from pdelab.report import Report, Run

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
    assert run.middle("log norm")[0] == pytest.approx(torch.stack(rates).median().item(), rel=0.02)
    worst = [torch.linalg.matrix_norm(J, 2) for J in dense]
    assert run.middle("growth, worst")[0] == pytest.approx(torch.stack(worst).median().item(), rel=0.02)
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


def test_one_layer_alone_has_no_others_to_leave_out():
    model = Stack(depth=1)
    text = str(quick(model, blocks=model.layers, loss=lambda out: out.square().mean()))
    assert "which carries least" in text
    assert "draws" not in text


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
        found = _shuffled_tokens({"input_ids": ids, "attention_mask": mask.long()}, rec, 5)["input_ids"]
        assert found[~mask].equal(ids[~mask])
        for row, before, real in zip(found, ids, mask, strict=True):
            assert row[real].sort().values.equal(before[real])
        assert not found.equal(ids)
        assert _shuffled_tokens(({"ids": ids}, "more"), rec, 5)[0]["ids"].equal(found)  # a mapping as first argument

    def test_every_entry_is_tried_for_tokens_but_masks_and_positions(self):
        class Placed(Stack):
            def forward(self, scale, positions, u, pad_mask=None):
                return super().forward(scale * u + 0 * positions.unsqueeze(-1))

        u, places = states(), torch.arange(9.0).repeat(4, 1)
        given = (torch.ones(1, 1, 1), places, u, places > 4)
        rec = record(Placed(), given)
        found = _shuffled_tokens(given, rec, 5)
        assert found[2].sort(1).values.equal(u.sort(1).values)
        assert not found[2].equal(u)
        assert all(found[n] is given[n] for n in (0, 1, 3))
        named = dict(zip(("scale", "positions", "u", "pad_mask"), given, strict=True))
        assert _shuffled_tokens(named, rec, 5)["u"].equal(found[2])
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
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 6  # a panel each, which stand below each other on a phone
    ids = re.findall(r'id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href=\"|url\()#([^\")]*)", page)) <= set(ids)
    assert not re.search(r"(src|href)=.(?!#)", page)  # nothing is loaded from elsewhere
    report.save(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert set(data["runs"]) == {"model", "random", "permuted", "shuffled layers", "shuffled tokens"}
    assert data["runs"]["model"]["layers"]["smoothness"][3] == []
    assert len(report.table) == 4
    assert report.table[1]["name"] == "layers.1"


def test_the_straightness_of_each_control_stands_beside_its_own_baseline():
    report = quick(Stack(), controls=("random", "permuted"), sampled=0)
    (words,) = [words for words in report.findings() if "straightness" in words]
    for name in ("random", "permuted"):
        straight, chance = (report.runs[name].typical(f"straightness{of}") for of in ("", " of independent steps"))
        assert f"{name} {straight:.2f}, independent steps {chance:.2f}" in words


def test_a_small_loss_keeps_its_digits():
    report = quick(Stack(), controls=(), sampled=0, loss=lambda out: 1e-4 * out.square().mean())
    (words,) = [words for words in report.findings() if words.startswith("The loss is")]
    loss = float(re.search(r"The loss is (\S+);", words)[1])
    assert 0 < loss < 1e-3
    assert loss == pytest.approx(report.own.whole["loss"][0], rel=1e-2)


def test_what_networks_without_training_have_as_well_is_not_said_to_stand_out():
    def run(step, others):
        return Run(layers={"smoothness": [[0, step, 1]]}, whole={"straightness": [0, others, 1]})

    runs = {"model": run(0.5, 0.52), "random": run(0.0, 0.5), "permuted": run(0.1, 0.6), "shuffled tokens": run(0.5, 0)}
    report = Report("Net", "A", ("one",), 4, 36, "finished", runs)
    (apart,), (alike,) = report.outstanding(), report.ordinary()
    assert "cosine of 0.50" in apart  # as it is with shuffled tokens, which have the same weights
    assert "straightness 0.52" in alike
    assert [*report.sections()][:2] == ["What stands out", "No different with random or permuted weights"]
    assert json.loads(report.to_json())["no different with random or permuted weights"] == [alike]
    alone = Report("Net", "A", ("one",), 4, 36, "finished", {"model": runs["model"]})
    assert not alone.ordinary()
    assert "What was found" in alone.sections()


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
    assert len(list(tmp_path.glob("*.json"))) == 2
    monkeypatch.undo()
    done = []
    monkeypatch.setattr(probing, "measured", lambda *args, plain=measured: done.append(1) or plain(*args))
    report = quick(Stack(), folder=tmp_path)
    assert len(done) == 3  # of five
    monkeypatch.undo()
    assert json.loads(report.to_json()) == json.loads(quick(Stack()).to_json())
    other = Stack()
    with torch.no_grad():
        other.head.weight.add_(1.0)
    quick(other, folder=tmp_path, controls=())
    assert len(list(tmp_path.glob("*.json"))) == 6  # another network is not taken for this one
    for factor in (1, 2):
        quick(other, folder=tmp_path, controls=(), loss=lambda out, f=factor: f * out.mean())
    assert len(list(tmp_path.glob("*.json"))) == 8  # nor another loss


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
