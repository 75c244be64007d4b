"""Layers of a network taken otherwise: what each change is, by hand, and how a record is read."""

import math

import pytest
import torch

from pdebook.chapters.beyond import layers, networks, pretrained, profile
from pdebook.chapters.beyond.pretrained import Part, Stack
from pdebook.evidence.experiment import Scale
from pdebook.evidence.run import find
from pdebook.evidence.trained import build
from pdebook.ledger.record import Key, Result
from pdelab.datasets import cache
from pdelab.integrators import RK4, Euler, Heun
from pdelab.probing import CONTROLS, probe
from pdelab.recording import record

SMOKE = Scale.SMOKE
KINDS = {"language": networks.language, "sentences": networks.sentences}


@pytest.fixture(scope="module", params=KINDS)
def network(request):
    return KINDS[request.param](SMOKE, 0)


@pytest.fixture(scope="module")
def stack(network):
    return Stack(network.layers, networks.branches(network))


@pytest.fixture(scope="module", params=("beyond_steps", "beyond_sentences"))
def result(request):
    return find(request.param)(SMOKE, 0)


def close(one, other):
    """Up to rounding: torch has a fused and a plain form of its layers."""
    return bool((one - other).abs().amax() <= 1e-5 * other.abs().amax())


# The networks


def test_the_layers_one_after_the_other_are_the_model():
    model = networks.Tiny(causal=True).eval()
    ids = torch.arange(24).view(2, 12)
    network = networks.read_on(model, ids, model.head)
    with torch.no_grad():
        logits = model(ids)[:, :-1].flatten(0, 1)
        assert close(network.read(network.run()), logits)
    expected = -logits.log_softmax(-1)[torch.arange(22), ids[:, 1:].flatten()].mean()
    assert network.loss(network.run()).item() == pytest.approx(expected.item(), rel=1e-5)


def test_padding_changes_neither_embedding_nor_loss():
    model = networks.Tiny(causal=False).eval()
    ids = torch.arange(32).view(8, 4)
    short = networks.compare(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    more = torch.nn.functional.pad(ids, (0, 3), value=7)
    long = networks.compare(model, {"input_ids": more, "attention_mask": torch.nn.functional.pad(ids * 0 + 1, (0, 3))})
    with torch.no_grad():
        assert close(short.embed(short.run()), long.embed(long.run()))
        assert close(short.loss(short.run()), long.loss(long.run()))


def test_shuffled_tokens_are_the_same_tokens_and_the_ends_of_a_sentence_stay():
    ids, mask = torch.arange(40).view(2, 20), torch.ones(2, 20)
    mask[1, 15:] = 0
    mixed = networks.shuffled(ids, mask, 0)
    assert torch.equal(mixed.sort().values, ids)
    assert torch.equal(mixed[:, 0], ids[:, 0])
    assert mixed[0, 19] == 19
    assert torch.equal(mixed[1, 14:], ids[1, 14:])
    assert not torch.equal(mixed, ids)


def test_every_text_is_long_enough_for_both_networks():
    assert len(networks.texts()) == 5
    for seed in range(5):
        assert len(networks.text_of(seed).split()) >= 2 * networks.LENGTH[Scale.BOOK]
        assert len(set(networks.pairs_of(seed))) == 2 * networks.PAIRS[Scale.BOOK]


@pytest.mark.weights
def test_the_published_networks_do_on_these_texts_what_they_were_trained_for():
    cache.get("minilm")
    cache.get("smollm2")
    with torch.no_grad():
        for of, chance in ((networks.language, math.log(49_152)), (networks.sentences, math.log(16))):
            network = of(Scale.BOOK, 0)
            assert network.loss(network.run()) < chance / 2


# Changes


def test_small_steps_of_a_linear_rate_are_powers_and_one_step_of_euler_is_the_layer():
    u, a = torch.ones(1, 2, 3, dtype=torch.float64), 0.7
    grow = lambda w: w + a * w  # noqa: E731
    for n in (1, 2, 4):
        assert close(pretrained.stepped(grow, Euler(), 1 / n, n)(u), (1 + a / n) ** n * u)
    assert close(pretrained.stepped(grow, Heun())(u), (1 + a + a**2 / 2) * u)
    assert close(pretrained.stepped(grow, RK4())(u), (1 + a + a**2 / 2 + a**3 / 6 + a**4 / 24) * u)


def test_a_rate_that_does_not_depend_on_the_state_is_stepped_exactly_by_every_method():
    u, shift = torch.zeros(1, 2, 3), torch.arange(3.0)
    for method, h, n in ((Euler(), 0.25, 4), (Heun(), 1.0, 1), (RK4(), 1.0, 1)):
        assert torch.allclose(pretrained.stepped(lambda w: w + shift, method, h, n)(u), shift.expand(1, 2, 3))


def test_writing_what_would_be_written_keeps_the_loss(network, stack):
    same = [stack.rewritten(k, lambda: lambda at, u, delta: u + delta) for k in range(len(stack.layers))]
    with torch.no_grad():
        assert close(network.run(same), network.run())


def test_every_change_is_a_change_of_the_whole_network_and_of_the_inner_layers_alone(network, stack):
    """The plain parts of every plan are the network, and its first and last layer are never touched."""
    plans = pretrained.changes(stack, 0)
    with torch.no_grad():
        base = network.run()
        for name, parts in plans.items():
            assert close(network.run([part.plain for part in parts]), base), name
            assert parts[0] == stack.same(0), name
            assert parts[-1] == stack.same(5), name
            assert not close(network.run([part.changed for part in parts]), base), name


def test_pairs_are_neighbours_and_a_last_inner_layer_without_one_stays():
    seen = []

    def layer(k):
        return lambda u: seen.append(k) or u

    for depth, swapped in ((6, [0, 2, 1, 4, 3, 5]), (7, [0, 2, 1, 4, 3, 5, 6])):
        stack = Stack(tuple(map(layer, range(depth))), ())
        seen.clear()
        pretrained.chain(*(p.changed for p in stack.pairs(lambda one, two: pretrained.chain(two, one))))(0)
        assert seen == swapped


def parts_of(stack, k):
    """A and R with norms of a layer of torch, and both norms for a stream; by hand."""
    m = stack.layers[k].module
    args = stack.layers[k].kwargs

    def attend(u):
        masks = {"attn_mask": args["src_mask"], "key_padding_mask": args["src_key_padding_mask"]}
        return m.self_attn(u, u, u, **masks, need_weights=False)[0]

    return attend, (lambda u: m.linear2(torch.relu(m.linear1(u)))), m.norm1, m.norm2


def by_hand(stack, k):
    """What `sum`, `Euler`, `R first` and `half branches` make of u, from the modules of the layer."""
    A, R, one, two = parts_of(stack, k)
    if stack.reaction(k) == 1:  # norms inside the branches

        def half(u):
            w = u + A(one(u)) / 2
            return w + R(two(w)) / 2

        def first(u):
            w = u + R(two(u))
            return w + A(one(w))

        both = lambda u: u + A(one(u)) + R(two(u))  # noqa: E731
        return {"sum": both, "Euler": both, "R first": first, "half branches": lambda u: half(half(u))}

    def half(u):
        for branch, norm in ((A, one), (R, two)):
            u = u + branch(u) / 2
            u = (u + norm(u)) / 2
        return u

    def first(u):
        w = two(u + R(u))
        return one(w + A(w))

    return {
        "sum": lambda u: two(one(u + A(u)) + R(u)),
        "Euler": lambda u: u + A(u) + (one(u) - u) + R(u) + (two(u) - u),
        "R first": first,
        "half branches": lambda u: half(half(u)),
    }


@pytest.mark.parametrize("change", ["sum", "Euler", "R first", "half branches"])
def test_branches_in_another_order_are_what_one_would_write_by_hand(network, stack, change):
    with torch.no_grad():
        part = pretrained.changes(stack, 0)[change][2]
        real = slice(None) if network.mask is None else network.mask
        assert close(part.changed(network.start)[real], by_hand(stack, 2)[change](network.start)[real])


def test_noise_is_as_long_as_the_change_at_every_token(network, stack):
    u, real = network.start, torch.ones(network.start.shape[:2], dtype=torch.bool)
    part, deviations = Part(stack.layers[1], lambda w: w), []
    with torch.no_grad():
        noise = pretrained.noisy([part], 0, real, deviations)[0](u) - part.plain(u)
        assert torch.allclose(noise.norm(dim=-1), (part.plain(u) - u).norm(dim=-1), rtol=1e-4)
        assert deviations == [pytest.approx(1.0, abs=1e-5)]
        half = pretrained.noisy([part], 0, real, [], 0.5)[0](u) - part.plain(u)
        assert close(half, noise / 2)
        spared = pretrained.noisy([part], 0, real, [], spared=3)[0](u) - part.plain(u)
        assert not spared[:, 3].any()
        assert torch.equal(spared[:, :3], noise[:, :3])


def test_the_budget_finds_a_branch_that_was_made_large_and_leaving_it_out_moves_later_tokens_alone():
    model = networks.Tiny(causal=True).eval()
    ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.layers[3].linear2.weight *= 300
        network = networks.read_on(model, ids, model.head)
        stack = Stack(network.layers, networks.branches(network))
        found = pretrained.largest(stack)
        assert (found.layer, found.symbol, found.write) == (3, "R", 1)
        sizes = torch.stack([s.delta.norm(dim=-1).square().mean(0) for s in stack.alone[3].stages[0]])
        assert found.token == sizes[1].argmax()
        base = network.run()
        plans = pretrained.without(stack, found)
        u = network.run([part.changed for part in plans["without the write"]])
        assert close(u[:, : found.token], base[:, : found.token])
        assert not close(u[:, found.token], base[:, found.token])
        outcomes = [parts[found.layer].changed(stack.alone[3].trajectory.states[0]) for parts in plans.values()]
        assert close(outcomes[0] + outcomes[2], outcomes[1] + stack.alone[3].trajectory.final)  # the parts of a write


def test_similarities_do_not_see_a_rotation():
    points = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1))).Q
    assert pretrained.kept(points, points @ turn) == pytest.approx(1.0)
    assert pretrained.kept(points, points.flip(0).roll(3, 0)) < 0.9


# The record


def test_a_result_has_every_change_beside_its_three_controls(result):
    for change in pretrained.names([result]):
        for figure in ("cost", "kl", "moved"):
            assert math.isfinite(result.figures[Key(change, figure)])
            for arm in ("noise", "shuffled tokens", "untrained"):
                assert math.isfinite(result.controls[Key(change, f"{arm} {figure}")])
    assert [row.change for row in pretrained.rows([result, result])] == list(pretrained.DEFINITIONS)[:-5]
    assert [share for share, _ in pretrained.doses([result, result])] == list(pretrained.DOSES)
    assert {len(row) for row in pretrained.energies([result, result]).values()} == {6}
    assert ("half/kept" in result.figures) == (result.experiment == "beyond_sentences")


def test_noise_elsewhere_stands_beside_every_change_of_both_networks():
    noise, steps = find("beyond_noise")(SMOKE, 0), find("beyond_steps")(SMOKE, 0)
    found = pretrained.elsewhere([steps] * 2, [noise] * 2, "smollm2")
    assert [*found, *pretrained.names([steps])[-4:]] == pretrained.names([steps])
    assert found["half"].mean == pytest.approx(
        steps.figures["half/cost"] - noise.controls["smollm2/half/noise cost"], rel=1e-6
    )


def made(costs, noise, seed):
    figures = {Key(name, "cost"): cost + 0.001 * seed for name, cost in costs.items()}
    controls = {Key(name, "noise cost"): noise + 0.001 * seed for name in costs}
    controls |= {Key(name, "noise deviation"): 0.1 for name in costs}
    return Result("beyond_steps", {}, "book", seed, "finished", figures, controls)


def test_how_a_record_is_read():
    finer = dict.fromkeys(pretrained.FINER, 0.1)
    costs = finer | {"hold": 6.0, "swap": 1.0, "skip, double step": 9.0, "skip": 5.0, "sum": 1.0, "R first": 1.0}
    results = [made(costs, 2.0, seed) for seed in range(3)]
    assert pretrained.reading(results) == {
        "inside a layer": "yes",
        "across layers": "no",
        "order of branches": "undecided",
    }
    found = {row.change: (row.size, row.against_noise) for row in pretrained.rows(results)}
    assert found["half"] == ("small", "gentler than noise")
    assert found["hold"] == ("large", "worse than noise")
    assert found["swap"][0] == "between"


# Which layers can go


def test_a_classifier_of_ours_is_its_layers():
    task = layers.TASKS["listops"][SMOKE]
    data = task.load(0)
    model = build("transformer", task, data, 0).eval()
    examples = data.test.take(slice(0, 20))
    network = layers.answering(model, examples)
    with torch.no_grad():
        assert close(network.read(network.run()), model(examples.x, examples.mask))


def test_costs_are_those_of_the_network_with_its_layers_left_out(network):
    costs = layers.Costs(network)
    with torch.no_grad():
        for left_out in ([0], [2, 4], [5, 1]):
            kept = [f for k, f in enumerate(network.layers) if k not in left_out]
            whole, less = network.loss(network.run()), network.loss(network.run(kept))
            assert costs.without(left_out) == pytest.approx((less - whole).item(), abs=1e-5)
        assert costs.each() == [costs.without([k]) for k in range(6)]


def test_transport_is_the_bound_of_what_leaving_out_a_little_of_a_layer_costs():
    """Taylor's score is the slope of the loss in the share of a layer that is left out; transport is at least that."""
    model, ids = networks.Tiny(causal=False).double().eval(), torch.arange(48).view(8, 6)
    network = networks.compare(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    found = layers.scores(network)
    assert all(a >= b for a, b in zip(found["transport"], found["taylor"], strict=True))

    def loss(k, share):
        f = network.layers[k]
        less = lambda u: u + (1 - share) * (f(u) - u)  # noqa: E731
        return network.loss(network.run([*network.layers[:k], less, *network.layers[k + 1 :]])).item()

    with torch.no_grad():  # a small step: ReLU has a kink that a wider one may meet
        slopes = [abs(loss(k, 1e-5) - loss(k, -1e-5)) / 2e-5 for k in range(6)]
    assert slopes == pytest.approx(found["taylor"], rel=1e-6)


def test_transport_is_that_of_the_gradients_of_a_recording():
    model = networks.Tiny(causal=True).eval()
    ids = torch.arange(24).view(2, 12)
    network, rec = networks.read_on(model, ids, model.head), record(model, {"input_ids": ids})
    gradients = rec.gradients(
        lambda logits: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    )
    states = rec.trajectory.states
    expected = [
        (g.norm(dim=-1) * (after - u).norm(dim=-1)).sum().item()
        for u, after, g in zip(states, states[1:], gradients[1:], strict=False)
    ]
    assert layers.scores(network)["transport"] == pytest.approx(expected, rel=1e-4)


def dropped(costs, seed):
    figures = {Key(net, f"dropped {name}"): costs[name] + 0.01 * seed for net in layers.NETWORKS for name in costs}
    figures |= {Key(net, f"rank {name}"): 0.5 for net in layers.NETWORKS for name in costs}
    controls = {Key(net, "chance"): [0.5, 1.0, 1.5] for net in layers.NETWORKS}
    return Result("layers_dropped", {}, "book", seed, "finished", figures, controls)


@pytest.mark.parametrize(("turning", "helps"), [(0.9, "yes"), (0.4, "no"), (0.1, "no")])
def test_transport_helps_only_if_it_is_better_than_both_rivals(turning, helps):
    costs = dict.fromkeys((*layers.RANKINGS, layers.POSITION), 0.9) | {"transport": 0.4, "turning": turning}
    found = layers.reading([dropped(costs, seed) for seed in range(5)])
    assert found["turning"] == found["transport helps"] == helps
    assert found["relative step"] == found["chance"] == "yes"


def test_layers_dropped_has_every_ranking_of_four_networks():
    result = find("layers_dropped")(SMOKE, 0)
    for row in layers.rows([result, result]):
        assert math.isfinite(row.dropped.mean)
        assert -1 <= row.rank.mean <= 1
    assert len(layers.rows([result, result])) == 24


def test_where_skipping_does_no_harm_nothing_can_be_measured_by_it():
    costs = dict.fromkeys((*pretrained.FINER, *pretrained.ACROSS, *pretrained.ORDER), 0.1) | {"skip": -0.1}
    results = [made(costs, 2.0, seed) for seed in range(3)]
    assert {row.size for row in pretrained.rows(results)} == {"without measure"}
    assert set(pretrained.reading(results).values()) == {"undecided"}


# The profile


def test_a_profile_has_what_probe_has_for_both_networks_and_four_controls():
    result = find("beyond_profile")(SMOKE, 0)
    model, inputs = networks.sentence_model(SMOKE, 0)
    report = probe(model, {k: rows[: profile.FEW] for k, rows in inputs.items()}, sampled=1, progress=False)
    for name in ("step", "doubling", "smoothness", "energy R"):
        assert result.figures[Key("minilm", name)] == pytest.approx(report.own.middle(name), nan_ok=True)
        for control in CONTROLS:
            expected = report.runs[control].middle(name)
            assert result.controls[Key("minilm", f"{control} {name}")] == pytest.approx(expected, nan_ok=True)
    assert result.figures["minilm/straightness"] == report.own.whole["straightness"][1]
    assert len(profile.curve([result, result], "smollm2", "step", "random")) == 6
    lows, highs = (result.figures[f"smollm2/step, {share}"] for share in ("5 %", "95 %"))
    assert all(a <= b <= c for a, b, c in zip(lows, result.figures["smollm2/step"], highs, strict=True))
