"""The command line: what it prints, what it exits with, and that stopping it loses nothing."""

import csv
import io
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import children
import pytest
import torch
from click.testing import CliRunner
from made_claims import attack_run

from pdebook import cli, terminal
from pdebook.evidence import run as runner
from pdebook.evidence.experiment import Scale
from pdebook.ledger.claims import read_claims
from pdebook.ledger.record import Result, Store
from pdebook.ledger.sources import experiments
from pdelab import probing
from pdelab.checkpoints import RefusedCheckpoint, UnusableFolder
from pdelab.datasets import cache

CLAIMS = [claim.id for claim in read_claims()]


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("PDELAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PDELAB_SCALE", raising=False)
    return tmp_path


def pdelab(*words, code=0):
    found = CliRunner().invoke(cli.main, [*words])
    assert found.exit_code == code, found.output
    return found.output


def test_without_a_name_run_lists_every_experiment_with_its_scales():
    lines = pdelab("run").splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(experiments())
    assert "smoke/book/paper" in next(line for line in lines if line.startswith("corners-images"))


def test_what_is_recorded_is_skipped_unless_again(places):
    own = ["--store", str(places / "results"), "--quiet"]
    first = pdelab("run", "heat_ends", "--seeds", "2", "--jobs", "1", *own)
    assert first.count("finished") == 2
    path = places / "results" / "heat_ends" / "book-seed1.json"
    before = path.read_bytes()
    assert f"2 to run on cpu, 1 at a time; results go to {places / 'results'}" in first
    second = pdelab("run", "heat_ends", "--seeds", "0,1,2", "--jobs", "4", *own)
    assert "2 recorded already" in second
    assert f"1 to run on cpu; results go to {places / 'results'}" in second
    assert second.count("finished") == 1
    assert path.read_bytes() == before
    assert "to run" not in pdelab("run", "heat_ends", "--seeds", "0,1,2", *own)
    third = pdelab("run", "heat_ends", "--seeds", "1,", "--again", *own)
    assert "heat_ends, book, seed 1: finished" in third
    assert "recorded already" not in third
    assert third.count("finished") == 1
    assert not (places / "data" / "runs" / "heat_ends" / "book-seed1").exists()


def length(places):
    (found,) = Store(places / "own").load("tables")
    return found.configuration["settings"]["steps"]


def test_a_cut_training_and_a_whole_one_are_two_things(places, monkeypatch):
    def trained(scale, seed, work):
        cut = {} if work.steps is None or work.steps >= 5000 else {"cut": f"{work.steps} of 5000 training steps"}
        settings = {"settings": {"steps": min(work.steps or 5000, 5000)}}
        return Result("tables", cut | settings, scale, seed, "finished", {})

    trained.scales, trained.cuts = tuple(Scale), True
    monkeypatch.setattr(runner, "find", lambda name: trained)
    words = ["run", "tables", "--seeds", "1", "--quiet", "--jobs", "1", "--store", str(places / "own")]
    for steps in (300, 400):  # a longer one replaces a shorter one
        assert "recorded already" not in pdelab(*words, "--steps", str(steps))
        assert "1 recorded already" in pdelab(*words, "--steps", str(steps))
        assert length(places) == steps
    for again in ([], ["--again"]):
        refused = pdelab(*words, "--steps", "300", *again, code=2)
        assert "book-seed0.json holds a training of more than 300 steps" in refused
        assert "--store" in refused
    assert length(places) == 400
    assert "recorded already" not in pdelab(*words)
    assert length(places) == 5000
    for whole in ([], ["--steps", "5000"], ["--steps", "9000"]):
        assert "1 recorded already" in pdelab(*words, *whole)
    assert "must not replace" in pdelab(*words, "--steps", "300", "--again", code=2)
    assert length(places) == 5000


def test_a_pattern_names_several_and_each_once():
    assert terminal.matching(["corners-*", "corners-images", "heat_ends"]) == [
        "corners-images",
        "corners-listops",
        "heat_ends",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "heat_end"], "no experiment is called 'heat_end'; did you mean heat_ends? pdelab run lists them all"),
        (["run", "xyz"], "no experiment is called 'xyz'; there are "),
        (["run", "heat_ends", "--steps", "3"], "heat_ends cannot be cut to 3 steps; --steps works for tables"),
        (["run", "heat_ends", "--store", __file__], "is a file"),
        (
            ["results", "heat_ends", "--scale", "paper"],
            "of 'heat_ends' at scale paper, only at book",
        ),
        (["claims", "P1-eq6/8"], "did you mean P1-eq6/7"),
        (["run", "heat_ends", "--scale", "paper"], "heat_ends has no scale paper, only book"),
        (["run", "heat_ends", "--scale", "huge"], "'huge' is not one of"),
        (["run", "heat_ends", "--seeds", "five"], "neither a number of seeds"),
        (["run", "heat_ends", "--seeds", "0"], "1 to 10000"),
        (["run", "heat_ends", "--seeds", ",1"], "neither a number of seeds"),
        (["run", "heat_ends", "--seeds", "-1"], "1 to 10000"),
        (["run", "heat_ends", "--seeds", "20261117"], "1 to 10000"),
        (["run", "heat_ends", "--device", "abacus"], "abacus"),
        (["run", "heat_ends", "--jobs", "0"], "jobs"),
        (["results", "heat"], "nothing is recorded of 'heat'"),
        (["results", "--store", "no/such"], "'no/such' does not exist"),
        (["claims", "--store", "no/such"], "'no/such' does not exist"),
        (["claims", "P9-eq1"], "no claim is called 'P9-eq1'"),
        (["data", "get", "imagenet"], "imagenet"),
        (["data", "get"], "Missing argument"),
        (["walk"], "No such command 'walk'"),
        (["probe"], "Missing argument 'NETWORK'"),
        (["probe", "bert-base"], "no network is called 'bert-base', nor a folder; give minilm or smollm2; a folder"),
        (["probe", "no_such:f"], "no_such cannot be loaded: No module named 'no_such'"),
        (["probe", "no_such.py:f"], "no_such.py cannot be loaded: [Errno 2] No such file"),
        (["probe", "math:tau"], "math has no function 'tau'"),
        (
            ["probe", "builtins:dict"],
            "must return (model, inputs), (model, inputs, loss) or (model, inputs, loss, mask)",
        ),
        (["probe", "builtins:dict", "--text", __file__], "--text is for networks with a tokenizer"),
        (["probe", "minilm", "--text", "no.txt"], "'no.txt' does not exist"),
        (["probe", "minilm", "--device", "abacus"], "--device: device must be one that is here"),
        (["probe", "minilm", "--control", "fair"], "'fair' is not one of"),
        (["probe", "minilm", "--control", "random", "--no-controls"], "exclude each other"),
    ],
)
def test_what_is_not_understood_gives_a_sentence_and_exit_code_2(words, says):
    output = pdelab(*words, code=2)
    assert says in output
    assert "Traceback" not in output


def test_the_scale_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("PDELAB_SCALE", "paper")
    assert "heat_ends has no scale paper, only book" in pdelab("run", "heat_ends", code=2)
    monkeypatch.setenv("PDELAB_SCALE", "huge")
    assert "PDELAB_SCALE) must be one of smoke, book, paper; not 'huge'" in pdelab("run", "heat_ends", code=2)
    assert "PDELAB_SCALE) must be one of smoke, book, paper; not 'huge'" in pdelab("doctor")


def test_results_show_figures_with_controls_and_intervals(places):
    assert "yours" not in pdelab("results")
    assert "heat_ends" in pdelab("results")  # the book's
    store = Store(places / "results")
    for seed, value in enumerate((1.0, 2.0, 3.0)):
        store.save(Result("x", {}, "book", seed, "finished", {"a": value, "m/b": [value, 0.0]}, {"c": 0.5}))
    store.save(Result("x", {}, "book", 3, "finished", {"a": 2.0}, {"c": 0.5}, {"m": 7}))
    assert ["x", "book", "0,1,2,3", "1"] in [line.split()[:4] for line in pdelab("results").splitlines()]
    table = pdelab("results", "x")
    assert "m/b" in table
    assert "2 [-0.484, 4.48]; 0 [0, 0] (3 seeds, 1 diverged)" in table
    assert "0.5 [0.5, 0.5] (4 seeds)" in table
    rows = list(csv.reader(io.StringIO(pdelab("results", "x", "--csv"))))
    assert rows[0][:3] == ["scale", "kind", "name"]
    assert ["book", "control", "c"] in [row[:3] for row in rows]


def test_a_damaged_result_is_named_with_exit_code_1(places):
    store = Store(places / "results")
    path = store.save(Result("x", {}, "book", 0, "finished", {"a": 1.0}))
    path.write_text(path.read_text().replace("1.0", "2.0"))
    assert "book-seed0.json was changed after it was written" in pdelab("results", code=1)
    assert "book-seed0.json was changed after it was written" in pdelab("doctor", code=1)


def test_seeds_that_were_recorded_differently_have_no_common_mean_and_that_is_said(places):
    store = Store(places / "results")
    store.save(Result("x", {"steps": 1}, "book", 0, "finished", {"a": 1.0}))
    store.save(Result("x", {"steps": 2}, "book", 1, "finished", {"a": 1.0}))
    words = pdelab("results", "x", code=1)
    assert "must share one experiment, scale and configuration" in words
    assert "pdelab run x --again" in words


def test_a_damaged_result_is_made_again(places):
    own = ["--store", str(places / "results"), "--quiet"]
    pdelab("run", "heat_ends", "--seeds", "1", *own)
    path = places / "results" / "heat_ends" / "book-seed0.json"
    whole = Store(places / "results").read(path).figures
    path.write_text(path.read_text()[:100])
    assert "seed 0: finished" in pdelab("run", "heat_ends", "--seeds", "1", *own)
    assert Store(places / "results").read(path).figures == whole


def test_a_model_that_diverged_is_named_where_a_run_is_reported(places, monkeypatch):
    def lost(scale, seed, work):
        return Result("heat_ends", {}, scale, seed, "finished", {"a/f": 1.0}, diverged={"b": 3})

    lost.scales = tuple(Scale)
    monkeypatch.setattr(runner, "find", lambda name: lost)
    assert "finished, diverged: b" in pdelab(
        "run", "heat_ends", "--seeds", "1", "--quiet", "--store", str(places / "own")
    )
    assert (places / "own" / "heat_ends" / "book-seed0.json").exists()
    assert pdelab("results", "--store", str(places / "own")).splitlines()[1].split()[3] == "1"


def test_results_go_where_git_does_not_look_or_for_an_installed_package_to_the_user_s_data(places, monkeypatch):
    monkeypatch.delenv("PDELAB_RESULTS")
    assert terminal.own_folder().parts[-2:] == ("work", "results")
    monkeypatch.setattr(terminal, "data_folder", lambda: places / "site-packages" / "pdelab" / "data")
    assert "site-packages" not in str(terminal.own_folder())
    assert terminal.own_folder().parts[-2:] == ("pdelab", "results")


def test_what_the_book_recorded_is_skipped_and_shown_beside_results_of_your_own(places):
    assert "5 recorded already" in pdelab("run", "heat_ends", "--seeds", "5", "--quiet")
    assert not (places / "results").exists()
    assert "(5 seeds)" in pdelab("results", "heat_ends")
    pdelab("run", "heat_ends", "--seeds", "1,7", "--again", "--quiet")
    shown = pdelab("results", "heat_ends")
    assert "(6 seeds)" in shown
    assert "of the results shown, 2 are yours, 4 are the book's" in shown

    other = Store(places / "results").load("heat_ends")[0]
    shutil.rmtree(places / "results" / "heat_ends")
    Store(places / "results").save(replace(other, configuration={"other": 1}))
    shown = pdelab("results", "heat_ends")  # with other settings there is no common mean
    assert "(1 seed)" in shown
    assert "1 are yours, 0 are the book's" in shown
    assert {line.split()[-1] for line in pdelab("results").splitlines() if "heat_ends" in line} == {"yours", "book's"}


def test_results_say_what_was_cut_and_name_every_commit_once(places):
    store = Store(places / "results")
    for seed, commit in enumerate(("a, b", "b")):
        given = {"cut": "3 of 9 training steps", "settings": {"steps": 3}}
        store.save(Result("x", given, "paper", seed, "finished", {"a": 1.0}, environment={"commit": commit}))
    (line,) = [line for line in pdelab("results").splitlines() if line.startswith("x ")]
    assert re.split(r"  +", line) == ["x", "paper", "0,1", "0", "3 of 9", "0.0", "a, b", "yours"]
    assert "paper: the training was cut to 3 of 9 training steps" in pdelab("results", "x")
    assert "cut" not in pdelab("results", "x", "--csv")


def test_lines_end_where_a_terminal_does_and_are_whole_in_a_pipe(monkeypatch, capsys):
    rows = [("a", "b" * 200)]
    terminal.table(rows, ("x", "y"), cut=True)
    assert "b" * 200 in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    terminal.table(rows, ("x", "y"), cut=True)
    assert capsys.readouterr().out.splitlines()[1] == "a  " + "b" * 36 + "…"
    terminal.table(rows, ("x", "y"))
    assert "b" * 200 in capsys.readouterr().out


def test_a_run_has_one_thread_unless_told(places, monkeypatch):
    for threads in ("1", "2"):
        pdelab("run", "heat_ends", "--seeds", "1", "--quiet", "--again", "--threads", threads)
        (result,) = Store(places / "results").load("heat_ends")
        assert (result.environment["device"], result.environment["threads"]) == ("cpu", threads)


def table_of(*words):
    return list(csv.DictReader(io.StringIO(pdelab("claims", "--csv", *words))))


def test_every_claim_is_listed_with_its_verdict():
    rows = table_of()
    assert len(rows) == len(CLAIMS)
    assert {"claim", "printed", "ours", "control", "verdict", "rule", "chapter", "box", "from"} <= set(rows[0])
    total, *parts = re.findall(r"^(?:  \w+: )?\d+ .*$", pdelab("claims"), re.MULTILINE)
    n = len({row["kind"] for row in rows})
    assert len(parts[n:]) == len({row["claim"].partition("-")[0] for row in rows})
    for counts in ([total], parts[:n], parts[n:]):  # all of them, by kind, and by paper
        assert sum(int(n) for n in re.findall(r"(?:^|[:;] )(\d+) ", "; ".join(counts))) == len(CLAIMS)
    one = pdelab("claims", "P1-eq6/7")
    assert "verdict" in one
    assert "because" in one
    assert "book/first_look.html#box-p1-eq6-7" in one
    assert pdelab("claims", "p1-EQ6-7") == one


def test_claims_are_chosen_by_verdict_and_chapter():
    rows = table_of()
    chosen = table_of("--chapter", "diffusion", "--verdict", "fails")
    assert chosen == [row for row in rows if (row["chapter"], row["verdict"]) == ("diffusion", "fails")]
    assert len(table_of("--chapter", "diffusion")) == sum(row["chapter"] == "diffusion" for row in rows)
    listed = [line.split()[0] for line in pdelab("claims", "--chapter", "diffusion").splitlines()]
    assert [name for name in listed if name in CLAIMS] == [
        row["claim"] for row in rows if row["chapter"] == "diffusion"
    ]
    assert "no claim" in pdelab("claims", "--chapter", "diffusion", "--verdict", "not testable as stated")
    assert "'nowhere'; there are" in pdelab("claims", "--chapter", "nowhere", code=2)
    assert "'maybe' is not one of" in pdelab("claims", "--verdict", "maybe", code=2)


def test_a_claim_shows_ours_and_the_control_with_intervals(places):
    store = Store(places / "results")
    figures, controls = attack_run(printed_a=(3, {}), corrected_b=(0, {"K": 5}))
    store.save(Result("attack_existence", {}, "book", 0, "finished", figures, controls))
    (row,) = [r for r in table_of("--store", str(places / "results")) if r["claim"] == "P1-thm1"]
    assert row["ours"] == "broken: 1 of 1 printed statement (100 starts); 0 of 1 corrected statement (100 starts)"
    assert row["control"] == "1 of 1 false neighbours broken in every seed"
    assert row["from"] == "book/pdebook/chapters/continuum_limit/attack.py::run_existence"


def test_data_are_listed_and_what_is_missing_has_its_own_exit_code(monkeypatch):
    listed = pdelab("data", "list")
    assert listed.count("missing") == len(cache.SOURCES)
    assert "Nothing is here yet" in pdelab("data", "verify")
    words = pdelab("data", "verify", "tinyshakespeare", code=3)
    assert "input.txt" in words
    assert "PDELAB_DATA" in words


def test_damaged_data_are_named_with_exit_code_1(places):
    path = places / "data" / "tinyshakespeare" / "input.txt"
    path.parent.mkdir(parents=True)
    path.write_text("To be, or not")
    assert "input.txt" in pdelab("data", "verify", code=1)
    assert "damaged" in pdelab("data", "list")
    assert "damaged" in pdelab("doctor", code=1)


def test_the_doctor_says_what_is_here_and_what_is_missing():
    words = pdelab("doctor")
    for expected in ("torch", "scikit-learn", "device", "cores", "data folder", "pdelab data get mnist", "0 damaged"):
        assert expected in words


NETWORK = """
import torch
from torch import nn


def small(layers=3):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)  # which copies: draw the layers apart
    for weight in encoder.parameters():
        nn.init.normal_(weight, std=0.3)
    return encoder, torch.randn(4, 6, 8)


def judged():
    return *small(), lambda out: out.square().mean()


def padded():
    return *small(), None, torch.arange(6) < torch.tensor([[6], [4], [2], [3]])


def deep():
    return small(20)


def flat():
    return nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8)


def broken():
    raise ZeroDivisionError


class Choosy(nn.Sequential):
    def forward(self, u):
        raise ValueError("three channels, please")


def refusing():
    return Choosy(*small()[0].layers), small()[1]
"""
QUICK = ("--sampled", "0", "--threads", "1", "--quiet")


@pytest.fixture
def network(places, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (places / "network.py").write_text(NETWORK)
    return str(places / "network.py")


def test_the_controls_of_the_command_are_those_of_probe():
    assert tuple(name.replace("-", " ") for name in cli.CONTROLS) == probing.CONTROLS


def test_a_function_is_probed_and_the_report_is_what_probe_gives(places, network):
    said = pdelab(
        "probe", f"{network}:judged", *QUICK, "--html", str(places / "a.page"), "--json", str(places / "a.json")
    )
    model, given, loss = runpy.run_path(network)["judged"]()
    report = probing.probe(model, given, loss=loss, sampled=0, progress=False)
    assert str(report) in said
    assert (places / "a.json").read_text() == report.to_json()
    assert "<svg" in (places / "a.page").read_text()
    assert "written" in said
    assert "draws 1," in " ".join(pdelab("probe", f"{network}:judged", *QUICK, "--draws", "1").split())


def test_a_mask_that_a_function_gives_is_passed_on(network):
    model, given, _, mask = runpy.run_path(network)["padded"]()
    said = pdelab("probe", f"{network}:padded", *QUICK)
    assert "4 examples, 15 tokens" in said
    assert str(probing.probe(model, given, mask=mask, sampled=0, progress=False)) in said


def test_a_module_beside_you_is_found_and_controls_are_chosen(network, monkeypatch):
    monkeypatch.chdir(os.path.dirname(network))
    for words, rows in (
        (["--no-controls"], []),
        (["--control", "shuffled-layers", "--control", "random"], ["shuffled layers", "random"]),
    ):
        said = pdelab("probe", "network:small", *QUICK, *words)
        assert re.findall(r"^ *(random|permuted|shuffled layers|shuffled tokens)  ", said, re.MULTILINE) == rows


def test_a_network_that_cannot_be_read_and_one_that_fails_end_with_exit_code_1(network):
    words = pdelab("probe", f"{network}:flat", *QUICK, code=1)
    assert words.startswith("pdelab: no two modules in a row of Sequential map a field")
    assert "add an axis of examples" in words
    for name, error in (("broken", ZeroDivisionError), ("refusing", ValueError)):
        with pytest.raises(error):  # the user's own code: with its traceback
            CliRunner().invoke(cli.main, ["probe", f"{network}:{name}", *QUICK], catch_exceptions=False)


def test_a_probe_that_is_stopped_goes_on_with_what_is_left(places, network):
    words = ["probe", f"{network}:deep", *QUICK]
    process = command(*words)
    deadline = time.monotonic() + 120
    while not list((places / "data" / "probes").glob("*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == terminal.STOPPED, (out, err)
    assert err == "pdelab: stopped; the same command goes on with what is left\n"
    (first, *_) = (places / "data" / "probes").glob("model-*.json")
    before = first.stat().st_mtime_ns
    assert "20 layers" in pdelab(*words)
    assert len(list((places / "data" / "probes").glob("*.json"))) == 1 + 2 * 3 + 2  # two controls are drawn three times
    assert first.stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A causal network and an encoder, with a tokenizer that has a token for every letter."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = Tokenizer(models.WordLevel({chr(32 + n): n for n in range(95)}, unk_token=" "))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token=" ")
    sizes = {"vocab_size": 95, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 40}
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved")
    for name, config, kind in (("causal", "LlamaConfig", "LlamaForCausalLM"), ("encoder", "BertConfig", "BertModel")):
        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(torch.bfloat16)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def test_a_saved_folder_is_probed_on_a_text(places, saved):
    (places / "text.txt").write_text("Depth is time, and tokens are space. " * 20)
    options = ("--text", str(places / "text.txt"), "--length", "12", "--examples", "5", "--no-controls", *QUICK)
    causal, encoder = (pdelab("probe", str(saved / name), *options) for name in ("causal", "encoder"))
    assert "LlamaForCausalLM: 2 layers, A→R; 5 examples, 60 tokens; finished" in causal
    assert "BertModel: 2 layers, A→S→R→S; 5 examples, 60 tokens; finished" in encoder
    loss = float(re.search(r"The loss is ([\d.]+)", causal)[1])
    assert loss == pytest.approx(math.log(95), abs=0.1)  # of a network that knows nothing yet
    assert "The loss" not in encoder
    assert "%|" not in causal  # no bar of loading


def test_a_text_or_folder_that_will_not_do_is_told_in_a_sentence(places, saved):
    causal = str(saved / "causal")
    (places / "short.txt").write_text("a")
    (places / "odd.txt").write_bytes(b"\xff\xfe\x00")
    assert "must hold two tokens" in pdelab("probe", causal, "--text", str(places / "short.txt"), *QUICK, code=2)
    assert "no text in UTF-8" in pdelab("probe", causal, "--text", str(places / "odd.txt"), *QUICK, code=2)
    assert "at most 40, the positions" in pdelab("probe", causal, "--length", "41", *QUICK, code=2)
    assert "holds no model and tokenizer" in pdelab("probe", str(places), *QUICK, code=1)


def test_weights_or_packages_that_are_missing_are_named(monkeypatch, saved):
    assert "pdelab data get minilm" in pdelab("probe", "minilm", *QUICK, code=3)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for target in ("minilm", str(saved / "causal")):
        assert 'pip install "pdelab[probe]"' in pdelab("probe", target, *QUICK, code=1)


def command(*words):
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a background job's children would ignore
    return children.command(*words, preexec_fn=listen)


@pytest.mark.parametrize(("jobs", "seeds"), [(1, 1), (2, 5)])
def test_a_run_that_is_stopped_goes_on_to_the_same_result(places, jobs, seeds):
    """Ctrl-C to the command alone, as kill gives it: exit code 130, checkpoints kept, and the next call ends it."""
    words = ["run", "corners-images", "--scale", "smoke", "--seeds", str(seeds), "--jobs", str(jobs), "--quiet"]
    runs = places / "data" / "runs" / "corners-images"
    process = command(*words)
    deadline = time.monotonic() + 120
    while len(list(runs.glob("smoke-seed*/*/checkpoint.pt"))) < jobs:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == terminal.STOPPED, (out, err)
    assert ": stopped" in err
    for seed in range(jobs):  # the first may have ended by then; none is lost without a word
        assert f"seed {seed}: finished" in out or f"seed {seed}: stopped" in err
    assert "The same command goes on with what is left." in err
    assert "Traceback" not in err
    assert list(runs.glob("smoke-seed*/*/checkpoint.pt"))
    assert len(list(runs.glob("smoke-seed*"))) <= jobs  # a job that a worker had fetched already was not begun

    process = command(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert not list(runs.glob("smoke-seed*"))
    fresh = runner.do(runner.Job("corners-images", Scale.SMOKE, 0))
    assert Store(places / "results").load("corners-images")[0].figures == fresh.figures


def test_runs_side_by_side_give_what_one_alone_gives(places):
    pdelab("run", "heat_ends", "--seeds", "3", "--jobs", "2", "--quiet", "--again")
    side_by_side = Store(places / "results").load("heat_ends")
    assert [r.seed for r in side_by_side] == [0, 1, 2]
    assert side_by_side[2].figures == runner.find("heat_ends")("book", 2).figures


def test_a_fault_in_a_run_is_shown_and_does_not_stop_the_others(places, monkeypatch):
    def broken(scale, seed, work):
        if seed == 1:
            raise ZeroDivisionError("a fault of the experiment")
        return Result("heat_ends", {}, scale, seed, "finished", {})

    broken.scales = tuple(Scale)
    monkeypatch.setattr(runner, "find", lambda name: broken)
    words = pdelab("run", "heat_ends", "--seeds", "3", "--jobs", "1", "--quiet", "--again", code=1)
    assert "Traceback" in words
    assert "heat_ends, book, seed 1: failed, ZeroDivisionError: a fault of the experiment" in words
    assert [r.seed for r in Store(places / "results").load("heat_ends")] == [0, 2]


@pytest.mark.parametrize("kind", [RefusedCheckpoint, UnusableFolder, cache.DataDamaged, OSError])
def test_an_expected_trouble_is_told_in_a_sentence(places, monkeypatch, kind):
    def refused(scale, seed, work):
        raise kind("this is why; do that")

    refused.scales = tuple(Scale)
    monkeypatch.setattr(runner, "find", lambda name: refused)
    words = pdelab("run", "heat_ends", "--seeds", "1", "--quiet", "--again", code=1)
    beforehand = f"1 to run on cpu; results go to {places / 'results'}"
    assert words.splitlines() == [beforehand, "pdelab: heat_ends, book, seed 0: failed, this is why; do that"]


def test_a_killed_process_is_named_and_the_other_runs_go_on(places, monkeypatch):
    monkeypatch.setattr(runner, "_work", children.killed_at_seed_0)
    words = pdelab("run", "heat_ends", "--seeds", "4", "--jobs", "2", "--quiet", "--again", code=1)
    assert "heat_ends, book, seed 0: failed, its process was killed, perhaps for lack of memory" in words
    assert words.count("failed") == 1
    assert "Traceback" not in words
    assert [r.seed for r in Store(places / "results").load("heat_ends")] == [1, 2, 3]


def test_a_fault_in_another_process_is_shown_with_the_line_that_failed(places, monkeypatch):
    monkeypatch.setattr(runner, "_work", children.faulty_at_seed_0)
    words = pdelab("run", "heat_ends", "--seeds", "2", "--jobs", "2", "--quiet", "--again", code=1)
    assert "heat_ends, book, seed 0: failed, ZeroDivisionError" in words
    assert "children.py" in words
    assert [r.seed for r in Store(places / "results").load("heat_ends")] == [1]


def test_missing_data_end_a_run_with_exit_code_3_and_what_to_do(monkeypatch):
    def offline(self):
        raise cache.DataMissing("mnist is not here; put it there")

    monkeypatch.setattr(cache.File, "download", offline)
    words = pdelab("run", "corners-images", "--scale", "paper", "--seeds", "1", "--quiet", code=3)
    assert "put it there" in words
    assert "Traceback" not in words


def test_a_reader_who_has_seen_enough_hears_of_no_error():
    read, write = os.pipe()
    os.close(read)  # as `head` does when it ends
    child = children.command("claims", stdout=write)
    os.close(write)
    assert child.communicate(timeout=120)[1] == ""


@pytest.mark.parametrize(("words", "module"), [("--help", "click"), ("claims", "pydantic"), ("run", "torch")])
def test_ctrl_c_while_modules_are_loaded_ends_in_a_word(words, module):
    code = f"""
import signal, sys
class Stop:
    def find_spec(self, name, *rest):
        name == {module!r} and signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Stop())
sys.argv[1:] = [{words!r}]
from pdebook.__main__ import main
main()
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert child.returncode == terminal.STOPPED
    assert child.stderr.startswith("pdelab: stopped")
    assert "Traceback" not in child.stderr
