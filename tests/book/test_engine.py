"""The playground's engine computes what pdelab computes, keeps to its settings, and predicts what theorems say."""

import json
import math
import random
import re
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest
import torch
from exercises import ROOT

from pdebook.chapters.clusters.laws import mean_cosine
from pdebook.chapters.crowd.measure import ripple
from pdebook.evidence import sphere
from pdelab import (
    Diffusion,
    Interaction,
    Layered,
    LayerNormRate,
    MasterEquation,
    PreNorm,
    Reaction,
    SpatialStabilization,
    Term,
    solve,
    solve_density,
)
from pdelab.formulas import longest
from pdelab.integrators import RK4, Euler, LieEuler, Strang
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import diameter, energy, mean_energy, nonuniformity, spread

PLAY = files("pdebook") / "kit" / "play"
SETTINGS = json.loads((PLAY / "settings.json").read_text())
SCHEMES = {"euler": Euler, "lie": LieEuler, "rk4": RK4, "strang": Strang}

# All four terms at once, random weights, in a free space; each run below changes some of it.
MIXED = {"N": 12, "d": 4, "L": 24, "dt": 0.1, "beta": 1, "r": 0.8, "kind": "tanh", "D": 0.2, "gamma": 0.5} | {
    "matrices": "random",
    "norm": "none",
    "start": "sphere",
}
RUNS = {
    **{
        f"{scheme}, {norm}": {"scheme": scheme, "norm": norm}
        for scheme in SCHEMES
        for norm in SETTINGS["norm"]["choices"]
    },
    **{f"{ends} ends": {"ends": ends, "D": 1, "start": "wave", "waves": 3} for ends in SETTINGS["ends"]["choices"]},
    **{f"fresh weights, {scheme}": {"fresh": "yes", "scheme": scheme, "kind": "relu"} for scheme in SCHEMES},
    **{f"leak {leak}": {"leak": leak, "scheme": "euler"} for leak in (0.35, 1)},
    **{f"leak {leak} before a norm": {"leak": leak, "norm": "pre", "kind": "relu"} for leak in (0.35, 1)},
    **{f"sees {who}": {"causal": who} for who in SETTINGS["causal"]["choices"]},
    "multiples of the identity, causal": {"causal": "yes", "matrices": "identity"},
    "attention alone": {"matrices": "identity", "r": 0, "D": 0, "gamma": 0, "leak": 1, "dt": 1},
    "attention that parts tokens": {
        "matrices": "identity",
        "v": -1,
        "r": 0,
        "D": 0,
        "gamma": 0,
        "d": 2,
        "start": "cloud",
    },
    "a push": {"v": 0, "kind": "push", "D": 0, "gamma": 0},
    "a push and a pull": {"v": 0, "kind": "push", "D": 0, "gamma": 2, "scheme": "euler", "start": "cloud"},
    "a pull that jumps": {"v": 0, "r": 0, "D": 0, "gamma": 3, "dt": 1, "start": "cloud"},
    "heat": {"v": 0, "r": 0, "gamma": 0, "D": 2, "start": "flat", "poke": 1},
    "nothing at all": {"v": 0, "r": 0, "gamma": 0, "D": 0},
    "a ring on the circle": {"matrices": "identity", "norm": "circle", "beta": 9, "d": 2, "start": "ring", "N": 40}
    | {"r": 0, "D": 0, "gamma": 0},
    "wide, sharp and deep": {"N": 40, "d": 16, "L": 64, "beta": 4, "norm": "pre", "kind": "relu"},
    "no softness": {"eps": 0, "r": 0, "D": 0, "gamma": 0.7, "v": 0, "start": "cloud"},
    "heat that fails": {"v": 0, "r": 0, "gamma": 0, "D": 4, "dt": 1.5, "N": 64, "L": 128},
}
DIVERGING = {
    "a push without end": {"kind": "push", "v": 2, "r": 2, "dt": 1.5, "L": 800, "D": 0, "gamma": 0},
    "heat far past its step": {"v": 0, "r": 0, "gamma": 0, "D": 4, "dt": 1.5, "N": 128, "L": 300},
    "random layers": {"fresh": "yes", "v": 2, "r": 2, "dt": 1.5, "L": 800, "kind": "relu"},
}  # deeper than a reader can ask for: a float64 has room

PLAYED = """
const played = ({settings, moved, beyond}) => {
  const e = pdelab.engine, o = {...e.complete(settings), ...beyond}, u0 = e.start(o, moved || {}), run = e.run(o, u0);
  return {o, u0, run, measured: e.measure(o, run)};
};
const columns = (measured) =>
  Object.fromEntries(Object.keys(measured[0]).map((key) => [key, measured.map((m) => String(m[key]))]));
"""  # as words, since NaN and Infinity are lost on the way


@pytest.fixture(scope="module")
def js(browser):
    """js(expression, given): what a JavaScript expression gives for `given`, with engine and quests loaded."""
    page = browser.new_page()
    page.add_script_tag(content=f"globalThis.pdelab = {{settings: {(PLAY / 'settings.json').read_text()}}}")
    for name in ("engine.js", "quests.js"):
        page.add_script_tag(content=(PLAY / name).read_text())
    page.add_script_tag(content=PLAYED)
    yield lambda expression, given=None: page.evaluate(
        f"given => {{ const e = pdelab.engine; return {expression}; }}", given
    )
    page.close()


def numbers(columns):
    return {key: np.array(values, dtype=float) for key, values in columns.items()}


def played(js, settings, **more):
    """Settings, weights, states and measures of one run of the engine; depth may go beyond what the page allows."""
    beyond = {"L": settings.get("L", 48)}
    found = js(
        """(() => {
          const {o, run, measured} = played(given), layers = o.fresh === "yes" ? o.L : 1;
          const plain = ({qkv, out, inner, outer, hidden}) => ({
            qkv: [...qkv.W], out: [...out.W], inner: [...inner.W], outer: [...outer.W], hidden});
          return {o, status: run.status, stoppedAt: run.stoppedAt, states: run.states.map((u) => [...u]),
            measured: columns(measured), maps: [...e.attention(o, run.states[0])],
            weights: Array.from({length: layers}, (_, l) => plain(e.weights(o, l)))};
        })()""",
        {"settings": settings, "beyond": beyond, **more},
    )
    o = found["o"]
    found["measured"] = numbers(found["measured"])
    found["states"] = torch.tensor(found["states"], dtype=torch.float64).view(-1, 1, o["N"], o["d"])
    return found


class Window(Interaction):
    """Attention on a ring that sees `behind` tokens behind itself and `ahead` before."""

    def __init__(self, width, behind, ahead, **options):
        super().__init__(width, **options)
        self.behind, self.ahead = behind, ahead

    def _allowed(self, u, mask):
        n = u.shape[1]
        away = (torch.arange(n) - torch.arange(n).unsqueeze(1)).remainder(n)  # of j from i, ahead
        return ((away <= self.ahead) | (away >= n - self.behind))[None, None]


def equation(o, w):
    """The layer that the settings name, of pdelab's own terms, with the engine's weights."""
    d, hidden, leaks = o["d"], w["hidden"], o["leak"] == 1 and o["norm"] != "pre"

    def shaped(values, *shape):
        return torch.tensor(values, dtype=torch.float64).view(shape)

    windows = {"near": (3, 3), "behind": (3, 0)}
    if o["causal"] in windows:
        attention = Window(d, *windows[o["causal"]], leak=leaks, bias=False)
    else:
        attention = Interaction(d, leak=leaks, causal=o["causal"] == "yes", bias=False)
    network = Reaction(d, hidden, activation="tanh" if o["kind"] == "tanh" else "relu", leak=leaks, bias=False)
    attention.load_state_dict(
        {"qkv.weight": shaped(w["qkv"], 3 * d, d), "out.weight": shaped(w["out"], d, d)}, assign=True
    )
    network.load_state_dict(
        {"inner.weight": shaped(w["inner"], hidden, d), "outer.weight": shaped(w["outer"], d, hidden)}, assign=True
    )

    terms = []
    for strength, term in ((o["v"], attention), (o["r"], network)):
        if not strength:
            continue
        term = PreNorm(term, d).double() if o["norm"] == "pre" else term
        if o["leak"] and not leaks:
            term = Term.of(term.symbol, lambda u, t, term=term: term(u, t) - o["leak"] * u)
        terms.append(term)
        if o["norm"] in ("post", "circle"):
            norm = LayerNormRate(d, 1 / o["dt"], centre=o["norm"] == "post").double()
            if o["norm"] == "circle":
                torch.nn.init.constant_(norm.norm.weight, 1 / math.sqrt(d))
            terms.append(norm)
    if o["D"]:
        terms.append(Diffusion(o["D"] / 1000, o["ends"]))
    if o["gamma"]:
        terms.append(SpatialStabilization(o["gamma"], o["eps"]))
    return MasterEquation(*(terms or [Term.of("R", torch.zeros_like)]))


@torch.no_grad()
def solved(found):
    """The same run by pdelab."""
    o, layers = found["o"], [equation(found["o"], w) for w in found["weights"]]
    f = Layered(layers, o["dt"]) if len(layers) > 1 else layers[0]
    return solve(f, found["states"][0], steps=o["L"], dt=o["dt"], integrator=SCHEMES[o["scheme"]]())


def distance(a, b):
    """max |a − b|/max(1, |b|), over what is finite; the rest must be the same."""
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    assert torch.equal(a.isnan(), b.isnan())
    assert torch.equal(a.isinf(), b.isinf())
    return ((a - b).abs() / b.abs().clamp(min=1)).nan_to_num(nan=0.0).max().item()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_and_its_measures_are_those_of_pdelab(js, name):
    """And whoever changes one of the two by a millionth is noticed: states agree to 1e-9 of their own size."""
    found = played(js, MIXED | RUNS[name])
    run = solved(found)

    assert (found["status"], found["stoppedAt"]) == (str(run.status), run.stopped_at) == ("finished", None)
    states = torch.stack(run.states)
    assert len(states) == len(found["states"]) == found["o"]["L"] + 1
    sizes = states.abs().amax(dim=(1, 2, 3)).clamp(min=1e-3)
    assert ((states - found["states"]).abs().amax(dim=(1, 2, 3)) / sizes).max() < 1e-9

    theirs = {
        "spread": [spread(u) for u in run.states],
        "diameter": [diameter(u) for u in run.states],
        "longest": [longest(u) for u in run.states],
        "energy": [energy(u) for u in run.states],
        "mean": [(2 * mean_energy(u)).sqrt() for u in run.states],
        "nonuniformity": [nonuniformity(u) for u in run.states],
        "fidelity": list(fidelity(run, over="state")),
    }
    for key, values in theirs.items():
        mine, values = found["measured"][key], np.array([float(value) for value in values])
        if key == "mean":  # what is left of large numbers that cancel
            mine, values = (x / found["measured"]["longest"].clip(1, 1e300) for x in (mine, values))
        assert distance(mine, values) < 1e-9, key


@pytest.mark.parametrize("name", DIVERGING)
def test_a_run_diverges_in_the_same_layer_as_in_pdelab(js, name):
    found = played(js, MIXED | DIVERGING[name])
    run = solved(found)
    assert found["status"] == str(run.status) == "diverged"
    assert found["stoppedAt"] == run.stopped_at == len(run.states) == len(found["states"])


def test_the_runs_above_use_every_word_of_every_setting():
    for key, setting in SETTINGS.items():
        seen = {({} | MIXED | run).get(key, setting["default"]) for run in RUNS.values()}
        assert seen >= set(setting.get("choices", {})), key


def test_attention_maps_are_those_of_pdelab(js):
    for change in ({}, {"causal": "yes"}, {"causal": "behind"}, {"norm": "pre"}):
        found = played(js, MIXED | change)
        term = equation(found["o"], found["weights"][0]).terms[0]
        maps = term.weights(found["states"][0]).detach()[0, 0]
        assert distance(found["maps"], maps.flatten()) < 1e-12


def test_layers_with_heads_biases_and_gains_are_those_of_torch(js):
    """What the digit's networks are made of."""
    N, d, hidden = 5, 8, 12
    attention, network = Interaction(d, 2, causal=True).double(), Reaction(d, hidden).double()
    norm = torch.nn.LayerNorm(d).double()
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    u = torch.randn(1, N, d, dtype=torch.float64)

    def pair(layer):
        return {"W": layer.weight.flatten().tolist(), "b": layer.bias.tolist()}

    made = js(
        """(() => { const {N, d, hidden} = given, typed = (x) => Float64Array.from(x), u = typed(given.u);
          const [qkv, out, inner, outer] = given.pairs.map(({W, b}) => ({W: typed(W), b: typed(b)}));
          const [gain, bias] = given.norm.map(typed);
          return [e.attend(u, {N, d, heads: 2, causal: true, qkv, out}), e.feedForward(u, {N, d, hidden, inner, outer}),
            e.layerNorm(u, N, d, {gain, bias})].map((x) => [...x]); })()""",
        {"u": u.flatten().tolist(), "N": N, "d": d, "hidden": hidden}
        | {"pairs": [pair(layer) for layer in (attention.qkv, attention.out, network.inner, network.outer)]}
        | {"norm": [norm.weight.tolist(), norm.bias.tolist()]},
    )
    for mine, theirs in zip(made, (attention(u), network(u), norm(u)), strict=True):
        assert distance(mine, theirs.detach().flatten()) < 1e-12


def test_angles_and_groups_on_the_circle_are_the_book_s(js):
    for seed in range(1, 6):
        given = {"N": 24, "start": "sphere", "norm": "circle", "beta": 8, "L": 40, "seed": seed}
        found = played(js, given)
        u = found["states"][:, 0]
        theta = torch.atan2(u[..., 1], u[..., 0])
        gap = 2 * math.asin(0.1)  # the arc over a chord of 0.2
        assert found["measured"]["groups"].tolist() == sphere.groups(theta, gap).tolist()
        assert distance(found["measured"]["cosine"], mean_cosine(theta.numpy())) < 1e-12


@pytest.mark.parametrize(("beta", "v"), [(1, 1.0), (9, 1.0), (4, -0.5)])
def test_a_density_on_the_circle_is_that_of_pdelab(js, beta, v):
    rho0 = ripple(48, 0.05)
    theirs = solve_density(rho0, beta=beta, v=v, time=6.0, states=4)
    mine = js(
        "(({states, status}) => ({status, states: states.map((x) => [...x])}))(e.density(given.rho0, given))",
        {"rho0": rho0[0].tolist(), "beta": beta, "v": v, "time": 6.0, "states": 4},
    )
    assert mine["status"] == str(theirs.status)
    assert distance(mine["states"], torch.stack(theirs.states)[:, 0]) < 1e-9


def test_a_ring_of_tokens_follows_the_density_of_the_crowd(js):
    """With short steps they agree in every mode to half a per cent, while the fourth grows tenfold."""
    settings = {"start": "ring", "N": 128, "beta": 4, "dt": 0.01, "L": 500}
    found = played(js, settings)
    rho = torch.tensor(js("e.crowd({...e.complete(given), L: given.L}).states.map((x) => [...x])", settings))
    u = torch.view_as_complex(found["states"][:, 0])
    cells = rho.shape[1]
    angle = 2 * math.pi * (torch.arange(cells) + 0.5) / cells
    for k in (1, 2, 3, 4):
        tokens = (u / u.abs()).pow(k).mean(dim=1)
        density = (rho * torch.exp(1j * k * angle)).sum(dim=1) * (2 * math.pi / cells)
        assert (tokens - density).abs().max() < 0.005, k
    assert tokens.abs()[-1] > 10 * tokens.abs()[0]  # it has left the even ring


def test_an_address_brings_back_exactly_what_it_was_made_of(js):
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = {
            key: rng.choice(list(s["choices"]))
            if "choices" in s
            else s["min"] + s["step"] * rng.integers(0, 1e6) % s["max"]
            for key, s in SETTINGS.items()
        }
        moved = {str(token): rng.normal(size=2).tolist() for token in range(3)}
        o = js("e.complete(given)", {k: v if isinstance(v, str) else float(v) for k, v in given.items()})
        back = js("e.fromAddress('#' + e.address(given.o, given.moved))", {"o": o, "moved": moved})
        assert back == {"o": o, "moved": moved}
    assert js("e.address(e.complete({}))") == ""


def test_with_a_quest_an_address_holds_what_differs_from_the_start_of_the_quest(js):
    for quest in QUESTS.values():
        start, solution = quest["start"], quest["solution"]
        for settings in (start, {}, start | solution["settings"]):
            given = {"o": js("e.complete(given)", settings), "start": start}
            back = js("e.fromAddress(e.address(given.o, {}, given.start), given.start)", given)
            assert back == {"o": given["o"], "moved": {}}
        assert js("e.address(e.complete(given), {}, given)", start) == ""


@pytest.mark.parametrize(
    "hash",
    [
        *(
            "N=1e9&L=-5&beta=NaN&dt=Infinity&norm=toString&kind=__proto__",
            "__proto__=1&constructor=2&N=&d=x",
            "%%%&=&&&#",
        ),
        *(
            "u=1e9,1,2;-1,0,0;0,NaN,1;1,2;2,1e999,0;x,1,1;3",
            "u=" + ";".join(["1,1,1"] * 5000),
            "N[]=5&N=5&N=7",
            "start=<b>",
        ),
    ],
)
def test_a_hostile_address_gives_settings_that_run(js, hash):
    found = js("(({o, moved}) => ({o, moved, start: [...e.start(o, moved)]}))(e.fromAddress(given))", hash)
    assert set(found["o"]) == set(SETTINGS)
    for key, setting in SETTINGS.items():
        value = found["o"][key]
        if "choices" in setting:
            assert value in setting["choices"]
        else:
            assert setting["min"] <= value <= setting["max"]
            assert (
                math.isclose((value - setting["min"]) / setting["step"] % 1, 0, abs_tol=1e-6) or value == setting["max"]
            )
    assert all(math.isfinite(x) for x in found["start"])


def test_every_setting_has_words_and_a_default_it_allows(js):
    assert js("e.complete({})") == {key: setting["default"] for key, setting in SETTINGS.items()}
    for key, setting in SETTINGS.items():
        assert setting["group"] in ("A", "R", "D", "S", "layers", "start"), key
        assert setting["level"] in (1, 2, 3), key
        assert min(len(setting["label"]), len(setting["words"])) > 0, key
        assert ("choices" in setting) != {"min", "max", "step"}.issubset(setting), key


STATUS = {
    "collapsed": {"norm": "none", "leak": 1, "beta": 1},
    "escaped": {"norm": "none", "r": 2, "L": 64},
    "diverged": {"norm": "none", "v": 2, "r": 2, "dt": 1.5, "L": 128, "D": 4, "N": 128},
    "clustered": {"start": "ring", "N": 60, "beta": 9, "L": 128},
    "oscillates": {"norm": "none", "v": 0, "gamma": 1, "dt": 1.2},
    "finished": {"norm": "none", "v": -1},
}


@pytest.mark.parametrize("word", STATUS)
def test_the_status_names_what_happened(js, word):
    said = js("(({o, run, measured}) => e.status(o, run, measured))(played({settings: given}))", STATUS[word])
    assert said["word"] == word
    assert said["sentence"].startswith(word.capitalize())


def test_a_cell_of_the_phase_diagram_says_what_its_run_does(js):
    """Inside the basin together, far outside apart: the edge lies between."""
    settings = {"norm": "none", "scheme": "euler", "N": 12, "beta": 16, "dt": 0.05, "L": 80, "eps": 0.04, "size": 1}
    words = [js("e.outcome(e.complete(given)).word", settings | {"gamma": g}) for g in (0, 0.5, 3, 6)]
    assert words == ["apart", "apart", "together", "together"]
    assert js("e.outcome(e.complete(given)).word", STATUS["oscillates"]) == "oscillates"
    assert js("e.outcome(e.complete(given)).word", STATUS["diverged"]) == "diverged"


def test_a_run_of_the_flow_can_be_undone(js):
    settings = {"norm": "none", "v": 1, "leak": 0.5, "r": 0.5, "kind": "tanh", "D": 0.2, "scheme": "rk4", "dt": 0.02}
    gap = js("(({o, u0, run}) => e.apart(e.undo(o, run.states[o.L]), u0, o.N))(played({settings: given}))", settings)
    assert gap < 1e-6


@pytest.mark.parametrize("d", [2, 8])
def test_a_large_run_is_fast_enough_to_follow_a_finger(js, d):
    """64 tokens through 64 layers in less than 20 ms: eight of them in 2.5, as a busy machine breaks in less often."""
    best = js(
        """(() => { const o = e.complete({N: 64, L: 8, d: given}), u = e.start(o); let best = Infinity;
          for (let n = 0; n < 400 && best >= 2.5; n++) {
            const before = performance.now(); e.run(o, u); best = Math.min(best, performance.now() - before);
          }
          return best; })()""",
        d,
    )
    assert best < 2.5


# What theorems say

CALM = {"N": 7, "d": 3, "L": 40, "norm": "none", "scheme": "euler", "start": "sphere"}


STRENGTHS = {"v": [-1, 0.5, 1], "r": [0.5], "D": [0.05, 1], "gamma": [0.5, 2, 5]}
ACTING = ["v", "v", "r", "D", "gamma", "v r", "r gamma", "r gamma", "v gamma", "v r gamma", "D gamma"]
NUMBERS = {"dt": [0.02, 0.1, 0.4, 1, 1], "leak": [0, 0.5, 1, 1], "eps": [0, 0.04, 0.25], "beta": [0.5, 2, 8]} | {
    "size": [0.3, 1, 3],
    "seed": [1, 2, 3, 4, 5],
}


def drawn_settings(number, seed):
    """Random settings in which theorems have much to say: few terms, short steps as often as long ones."""
    draw = random.Random(seed)
    for _ in range(number):
        acting = draw.choice(ACTING).split()
        given = {key: draw.choice(values) if key in acting else 0 for key, values in STRENGTHS.items()}
        given |= {key: draw.choice(values) for key, values in NUMBERS.items()}
        given |= {key: draw.choice(list(s["choices"])) for key, s in SETTINGS.items() if "choices" in s}
        often = {
            "kind": "push",
            "causal": "no",
            "matrices": "identity",
            "fresh": "no",
            "scheme": "euler",
            "norm": "none",
        }
        given |= {key: value for key, value in often.items() if draw.random() < 0.7}
        yield given | {"N": 7, "d": 3, "L": 40}


def predicted(js, settings):
    found = js(
        """(({o, u0, run, measured}) => ({o, measured: columns(measured), theory: e.theory(o, u0, run)}))(
          played({settings: given}))""",
        settings,
    )
    return found | {"measured": numbers(found["measured"])}


def obeyed(law, found):
    """Whether a run obeys a law that is exact or a bound, up to rounding, which heat past its step lets grow."""
    values, size = found["measured"][law["curve"]], found["measured"]["longest"]
    theory = np.asarray(law["values"], dtype=float)
    theory = np.broadcast_to(theory[: len(values)] if theory.ndim else theory, values.shape)
    slack = 1e-9 * np.maximum(np.abs(theory), np.maximum.accumulate(size) if law["curve"] != "energy" else size**2)
    below, above = (values <= theory + slack).all(), (values >= theory - slack).all()
    return {"equal": below and above, "at most": below, "at least": above}[law["relation"]]


@pytest.fixture(scope="module")
def promises(js):
    """(law, run) for every law that is exact or a bound, in 500 random settings."""
    runs = [predicted(js, settings) for settings in drawn_settings(500, seed=0)]
    return [
        (law, found) for found in runs for law in found["theory"] if law["relation"] in ("equal", "at most", "at least")
    ]


def test_every_run_obeys_every_law_that_is_said_to_hold_for_it(promises):
    assert not [(law["statement"], found["o"]) for law, found in promises if not obeyed(law, found)]
    met = Counter(law["statement"] for law, _ in promises)
    attention = {"thm-in-collapse", "thm-ev-in-collapse", "thm-ev-stability-diameter", "thm-sb-step", "thm-rs-budget"}
    assert set(met) == attention | {"prop-sb-cycle", "prop-ev-diffusion-powers", "thm-re-rates", "lem-sb-pull"}
    assert min(met.values()) >= 5, met


def test_a_law_that_is_a_hundredth_off_is_broken_by_some_run(promises):
    """Else the test above could not fail."""
    factors = {"equal": 1.01, "at most": 0.99, "at least": 1.01}
    broken = set()
    for law, found in promises:
        wrong = law | {"values": factors[law["relation"]] * np.asarray(law["values"])}
        if not obeyed(wrong, found):
            broken.add(law["statement"])
    assert broken == {law["statement"] for law, _ in promises}


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("terms", [{"v": 0, "r": 1}, {"v": 0, "r": 1.5, "leak": 0.5}])
def test_the_edge_of_the_basin_parts_starts_that_meet_from_starts_that_part(js, gamma, terms):
    base = CALM | {"gamma": gamma, "dt": 0.02, "L": 128, "start": "cloud"} | terms
    edge = next(law["values"] for law in predicted(js, base)["theory"] if law["relation"] == "edge")
    for factor, word in ((0.95, "together"), (1.05, "apart")):
        outcome = js("e.outcome({...e.complete(given), size: given.exactly}).word", base | {"exactly": edge * factor})
        assert outcome == word


def test_inside_the_basin_attention_cannot_part_tokens(js):
    """The level for attention is a promise, from below: there the tokens come together, whatever the scores."""
    base = CALM | {"v": 1, "beta": 16, "gamma": 2, "dt": 0.05, "eps": 0.2, "L": 60, "start": "cloud"}
    for seed in range(1, 6):
        found = predicted(js, base | {"size": 0.5, "seed": seed})
        edge = next(law["values"] for law in found["theory"] if law["relation"] == "edge")
        apart = found["measured"]["diameter"]
        assert apart[0] < edge
        assert apart[-1] < 0.1 * apart[0]


def test_jumping_tokens_tend_to_the_cycle_that_is_predicted(js):
    for settings in ({"dt": 1.2, "gamma": 1}, {"dt": 1, "gamma": 3, "r": 0.1}, {"dt": 0.5, "gamma": 6, "eps": 0.5}):
        found = predicted(js, CALM | {"v": 0, "start": "cloud", "L": 128} | settings)
        level = next(law["values"] for law in found["theory"] if law["relation"] == "cycle")
        assert found["measured"]["spread"][-1] == pytest.approx(level, rel=1e-6)


def test_a_wave_fades_by_its_own_factor_and_grows_past_the_step_that_is_named(js):
    """cos(kπx) is multiplied by 1 − 4N²DΔt sin²(kπ/2N) per layer; the words name the step at which that is −1."""
    for k in (1, 5, 15):
        given = {"norm": "none", "v": 0, "D": 0.5, "dt": 0.5, "N": 16, "L": 20, "start": "wave", "waves": k}
        found = predicted(js, given)
        factor = abs(1 - 4 * 16**2 * 0.0005 * 0.5 * math.sin(k * math.pi / 32) ** 2)
        spreads = found["measured"]["spread"]
        assert spreads[-1] == pytest.approx(spreads[0] * factor**20, rel=1e-9)
    (law,) = (law for law in found["theory"] if law["statement"] == "prop-ev-diffusion-powers")
    named = float(re.search(r"above ([\d.]+)\.$", law["words"])[1])
    assert named == pytest.approx(Diffusion(0.0005).largest_step(16), rel=5e-3)


def test_short_steps_and_wide_layers_come_near_what_is_predicted_for_them(js):
    def gap(settings, statement):
        found = predicted(js, settings)
        law = next(law for law in found["theory"] if law["statement"] == statement)
        return np.abs(found["measured"][law["curve"]] - law["values"])[1:].max()

    pair = {"N": 2, "start": "sphere", "norm": "circle", "beta": 2, "seed": 3}
    coarse, fine = (gap(pair | {"dt": dt, "L": round(2 / dt)}, "prop-in-angles") for dt in (0.1, 0.02))
    assert fine < 0.3 * coarse < 0.02

    drawn = {"norm": "none", "v": 0, "r": 1, "kind": "tanh", "fresh": "yes", "N": 16, "L": 32, "dt": 0.15, "leak": 1}
    gaps = [[gap(drawn | {"d": d, "seed": seed}, "thm-me-dial") for seed in range(1, 9)] for d in (16, 32)]
    assert max(gaps[1]) < 0.15
    assert np.mean(gaps[1]) < np.mean(gaps[0])

    assert gap({"norm": "post", "d": 8, "N": 12}, "thm-st-projection") < 1e-3


def test_the_ripple_that_is_said_to_grow_fastest_does(js):
    """In the density, each mode for itself, at the rate v k² I_k(β)/(β I₀(β)) of the theorem."""
    for beta in (2, 6, 12):
        law = next(
            law for law in predicted(js, {"start": "ring", "beta": beta, "N": 60})["theory"] if law["curve"] == "groups"
        )
        cells, grown = 240, {}
        angle = 2 * math.pi * (np.arange(cells) + 0.5) / cells
        for k in range(1, 9):
            rho0 = ((1 + 1e-4 * np.cos(k * angle)) / (2 * math.pi)).tolist()
            last = js("[...e.density(given.rho, given).states[1]]", {"rho": rho0, "beta": beta, "time": 0.5})
            grown[k] = np.array(last) @ np.cos(k * angle)
        assert max(grown, key=grown.get) == law["values"]


def test_every_law_names_a_statement_that_stands_on_its_page():
    source = (PLAY / "engine.js").read_text()
    named = set(re.findall(r'"((?:evidence/)?\w+)", "((?:thm|prop|lem|cor)-[\w-]+)"\)', source))
    assert len(named) >= 12
    for page, statement in named:
        assert f":label: {statement}\n" in (ROOT / "book" / f"{page}.md").read_text(), (page, statement)


# Quests

QUESTS = {quest["id"]: quest for quest in json.loads((PLAY / "quests.json").read_text())}
NEAR = {
    "depth": [{"dt": 0.04, "L": 90}, {"dt": 0.2, "L": 24}],
    "sweep": [{"scheme": "rk4"}, {"scheme": "euler", "dt": 0.01}, {"scheme": "lie", "v": 0}],
    "consensus": [{"leak": 0.3}, {"v": -1}, {"leak": 1, "gamma": 2}, {"leak": 1, "beta": 0}],
    "three": [{"beta": 12}, {"beta": 8, "L": 90}, {"beta": 8, "L": 100, "dt": 0.01}],
    "leader": [{"causal": "yes", "L": 16}, {"beta": 4}, {"causal": "yes", "v": -1}],
    "tenfold": [{"r": 1.1}, {"r": 1, "v": 0.1}, {"r": 1, "kind": "tanh"}, {"r": 1, "kind": "relu"}],
    "poke": [{"D": 0.5}, {"D": 4}, {"D": 1, "ends": "absorbing", "L": 128}, {"D": 1, "start": "cloud"}],
    "heat": [{"dt": 0.97}, {"D": 2}, {"dt": 1.3, "r": 2}],
    "length": [{"norm": "none", "leak": 1}, {"norm": "circle", "v": 1}, {"norm": "circle", "start": "sphere"}],
    "five": [{"beta": 8}, {"beta": 14, "start": "sphere"}, {"beta": 14, "L": 10}],
    "basin": [{"size": 1.9}, {"size": 2.2, "gamma": 0.9}, {"gamma": 6, "eps": 0.01, "dt": 1.5}],
    "mean": [{"r": 0.5, "gamma": 3, "L": 64}, {"r": 1, "gamma": 3, "L": 20}],
    "cycle": [{"dt": 0.9}, {"dt": 1.2, "eps": 0.4}, {"dt": 1.2, "r": 2}],
    "half": [{"dt": 0.12}, {"dt": 0.25}, {"dt": 0.18, "fresh": "no"}, {"dt": 0.18, "leak": 0.5}],
    "forget": [{"dt": 0.4}, {"dt": 1.5, "r": 2, "leak": 1}, {"dt": 1.5, "r": 2, "kind": "push"}],
    "keep": [{"beta": 6}, {"beta": 25, "leak": 0}, {"beta": 25, "dt": 0.5}, {"v": 0, "r": 1}],
    "compress": [
        {"v": 1, "leak": 1, "L": 20},
        {"v": 1, "leak": 1, "scheme": "euler"},
        {"v": 1, "leak": 1, "L": 128, "dt": 0.5},
    ],
}
LAZY = {
    "two tokens": {"N": 2},
    "one layer": {"L": 1},
    "nothing at all": {"v": 0, "r": 0, "D": 0, "gamma": 0},
    "all in one place": {"size": 0.1, "start": "flat", "poke": 0},
}


def is_reached(js, quest, settings=(), moved=None):
    return js(
        "(({o, u0, run, measured}) => pdelab.quests.reached(given.quest, o, run, measured, u0))(played(given))",
        {"quest": quest, "settings": quest["start"] | dict(settings), "moved": moved},
    )


@pytest.mark.parametrize("name", QUESTS)
def test_a_quest_is_not_reached_at_its_start_but_by_its_solution(js, name):
    quest = QUESTS[name]
    solution = quest["solution"]
    assert is_reached(js, quest) is False
    assert is_reached(js, quest, solution["settings"], solution.get("moved")) is True


@pytest.mark.parametrize("name", QUESTS)
def test_a_quest_says_in_words_what_is_measured_and_what_is_wanted(js, name):
    quest = QUESTS[name]
    for settings in ({}, quest["solution"]["settings"], {"L": 1}, {"N": 2, "v": 2, "r": 2, "dt": 1.5, "L": 128}):
        judged = js(
            "(({o, u0, run, measured}) => pdelab.quests.judge(given.quest, o, run, measured, u0))(played(given))",
            {"quest": quest, "settings": quest["start"] | settings},
        )
        assert re.fullmatch(r"Now .+; wanted .+\.", judged["words"]), judged
        assert not re.search("NaN|undefined|null|Infinity", judged["words"]), judged
        assert len(judged["words"]) <= 160


@pytest.mark.parametrize("name", QUESTS)
def test_a_near_miss_and_a_lazy_trick_do_not_reach_a_quest(js, name):
    quest = QUESTS[name]
    for near in NEAR[name]:
        assert is_reached(js, quest, near) is False, near
    for trick, change in LAZY.items():
        assert is_reached(js, quest, quest["solution"]["settings"] | change) is False, trick
        assert is_reached(js, quest, change) is False, trick


@pytest.mark.parametrize("name", ["consensus", "leader", "basin", "mean", "compress"])
def test_tokens_dragged_to_the_goal_do_not_reach_it(js, name):
    quest = QUESTS[name]
    together = {str(token): [0.5, 0.5] for token in range(128)}
    assert is_reached(js, quest, moved=together) is False
    assert is_reached(js, quest, quest["solution"]["settings"], together) is False


def test_quests_cover_the_chapters_and_name_statements_of_their_pages():
    chapters = {quest["page"].removeprefix("evidence/") for quest in QUESTS.values()}
    theorems = "continuum_limit master_equation interaction clusters reaction diffusion stabilization crowd"
    assert chapters == set(theorems.split()) | {"stability", "dial", "residual", "information"}
    for quest in QUESTS.values():
        page = (ROOT / "book" / f"{quest['page']}.md").read_text()
        assert f":label: {quest['statement']}\n" in page, quest["id"]


def test_a_quest_names_settings_that_exist_and_words_a_newcomer_can_read(js):
    for quest in QUESTS.values():
        for given in (quest["start"], quest["solution"]["settings"]):
            complete = js("e.complete(given)", given)
            assert {key: complete[key] for key in given} == given, quest["id"]
        sentences = re.findall(r"[.?!](?=\s|$)", quest["words"])
        assert 1 <= len(sentences) <= 2, quest["id"]
        assert len(quest["words"]) <= 230, quest["id"]
