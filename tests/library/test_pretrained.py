"""Networks that others trained do what they were trained for, and what they do is not ours: no result is recorded."""

import math
import socket
import subprocess
import sys
from copy import deepcopy
from functools import partial
from inspect import cleandoc

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from pdelab import pretrained
from pdelab.datasets import cache

# a sentence, the same in other words, and another matter in nearly the same words
TRIPLES = [
    ("The doctor examined the sick child.", "A physician looked at an ill kid.", "The doctor bought the red car."),
    ("He was very happy with the result.", "The outcome delighted him.", "He was very cold in the kitchen."),
    ("The film was boring.", "I nearly fell asleep during that movie.", "The soup was boiling."),
    ("How do I reset my password?", "I forgot my login and need a new one.", "How do I boil my potatoes?"),
]
ENGLISH = (
    "The sun had not yet risen when the fishermen pushed their boats into the water. A light wind came from the "
    "north, and the old men on the shore said that it would rain before evening."
)


@pytest.fixture(scope="module")
def random_smollm2(smollm2):
    return pretrained.untrained("smollm2", 0)


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def meanings(network, texts):
    """One unit vector per text: the mean over its real tokens, as the makers of MiniLM prescribe."""
    inputs = network.inputs(texts)
    weight = inputs["attention_mask"].unsqueeze(-1)
    return normalize((network.model(**inputs).last_hidden_state * weight).sum(1) / weight.sum(1), dim=-1)


def nearer_in_meaning(network) -> list[bool]:
    triples = [meanings(network, triple) for triple in TRIPLES]
    return [bool(one @ same > one @ other) for one, same, other in triples]


@pytest.mark.weights
def test_minilm_goes_by_meaning_and_an_untrained_network_by_words(minilm):
    assert nearer_in_meaning(minilm) == [True] * 4
    assert nearer_in_meaning(pretrained.untrained("minilm", 0)) == [False] * 4


@pytest.mark.weights
def test_smollm2_expects_english_and_neither_its_words_in_disorder_nor_untrained_anything(smollm2, random_smollm2):
    ids = smollm2.inputs([ENGLISH])["input_ids"]
    disorder = ids[:, torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(0))]
    loss = {name: float(smollm2.model(x, labels=x).loss) for name, x in (("order", ids), ("disorder", disorder))}
    assert loss["order"] < loss["disorder"] - 3  # nats a token: a perplexity twenty times as small

    symbols = smollm2.model.config.vocab_size
    assert float(random_smollm2.model(ids, labels=ids).loss) == pytest.approx(math.log(symbols), abs=0.3)


@pytest.mark.weights
def test_the_loss_of_smollm2_is_the_mean_surprise_at_the_next_token(smollm2):
    ids = smollm2.inputs([ENGLISH])["input_ids"]
    out = smollm2.model(ids, labels=ids)
    assert float(out.loss) == pytest.approx(float(cross_entropy(out.logits[0, :-1], ids[0, 1:])), rel=1e-5)


@pytest.mark.weights
def test_smollm2_knows_the_capital_of_france(smollm2):
    logits = smollm2.model(**smollm2.inputs(["The capital of France is"])).logits
    assert smollm2.tokenizer.decode(logits[0, -1].argmax()) == " Paris"


@pytest.mark.weights
def test_weights_are_those_of_the_files(minilm, smollm2):
    import gguf
    from safetensors.torch import load_file

    stored = load_file(cache.verify("minilm")[1])
    loaded = minilm.model.state_dict()
    assert all(torch.equal(loaded[name], stored[name]) for name in loaded)

    (file,) = cache.verify("smollm2")
    parts = {part.name: part for part in gguf.GGUFReader(file).tensors}
    layer = smollm2.model.model.layers[29]
    for name, weight in (
        ("token_embd.weight", smollm2.model.lm_head.weight),  # one matrix reads and writes
        ("blk.29.attn_v.weight", layer.self_attn.v_proj.weight),
        ("blk.29.ffn_down.weight", layer.mlp.down_proj.weight),
    ):
        found = gguf.dequantize(parts[name].data, parts[name].tensor_type)
        torch.testing.assert_close(weight, torch.from_numpy(found), rtol=0, atol=0)


@pytest.mark.weights
def test_transformer_lens_reads_the_same_network_the_same_way(smollm2, no_network):
    """Its residual stream is the network's own hidden states, and its logits are the network's."""
    lens = pytest.importorskip("transformer_lens.model_bridge")
    ids = smollm2.inputs([ENGLISH])["input_ids"]
    own = smollm2.model(ids, output_hidden_states=True)
    bridge = lens.TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        hf_model=deepcopy(smollm2.model),  # which the bridge changes
        tokenizer=smollm2.tokenizer,
        device="cpu",
    )
    logits, states = bridge.run_with_cache(ids)
    torch.testing.assert_close(logits, own.logits, rtol=1e-4, atol=1e-3)
    for layer in (0, 10, 20, 29):
        ours = own.hidden_states[layer]
        error = (states[f"blocks.{layer}.hook_resid_pre"] - ours).norm() / ours.norm()
        assert error < 1e-5, layer


@pytest.mark.weights
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_network_is_in_single_precision_and_evaluates(name, request):
    network = request.getfixturevalue(name)
    assert {weight.dtype for weight in network.model.parameters()} == {torch.float32}
    assert not any(module.training for module in network.model.modules())


@pytest.mark.weights
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_padding_changes_nothing_of_the_real_tokens(name, request):
    """On either side: a text beside a longer one has the states that it has alone."""
    network = request.getfixturevalue(name)
    core = getattr(network.model, "model", network.model)
    alone = core(**network.inputs(["Tokens are space."])).last_hidden_state
    for side in ("right", "left"):
        inputs = network.inputs(["Tokens are space.", ENGLISH], padding=side)
        real = inputs["attention_mask"][0].bool()
        assert real.sum() == alone.shape[1]
        assert bool(real[0]) == (side == "right")
        torch.testing.assert_close(core(**inputs).last_hidden_state[:1, real], alone, rtol=1e-3, atol=1e-3)


@pytest.mark.weights
@pytest.mark.parametrize(("name", "cut"), [("minilm", 5), ("smollm2", 5)])
def test_texts_are_cut_to_the_length_asked_for(name, cut, request):
    network = request.getfixturevalue(name)
    inputs = network.inputs([ENGLISH, "One."], length=cut)
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert inputs["input_ids"].shape == (2, cut)
    assert inputs["attention_mask"].sum(1).tolist()[0] == cut
    whole = network.inputs([ENGLISH])["input_ids"][0]
    assert torch.equal(inputs["input_ids"][0, : cut - 1], whole[: cut - 1])  # the last may be an end mark


@pytest.mark.weights
def test_texts_that_cannot_be_read_are_refused(minilm, smollm2):
    with pytest.raises(ValueError, match=r"texts must be a list of strings; not 'one'"):
        minilm.inputs("one")
    with pytest.raises(ValueError, match=r"texts must be a list of strings; not \[1\]"):
        minilm.inputs([1])
    with pytest.raises(ValueError, match=r"texts must each give 1 to 8192 tokens; not \[1, 0\]"):
        smollm2.inputs(["a", ""])
    with pytest.raises(ValueError, match=r"1 to 512 tokens; not \[602\].*length="):
        minilm.inputs(["a " * 600])
    with pytest.raises(ValueError, match="texts must each give"):
        minilm.inputs([])
    for wrong in (0, 2, 513, 4.5):
        with pytest.raises(ValueError, match="length must be a whole number from 3 to 512"):
            minilm.inputs(["a"], length=wrong)
    with pytest.raises(ValueError, match="padding must be one of right, left; not 'top'"):
        minilm.inputs(["a"], padding="top")


@pytest.mark.weights
def test_an_untrained_network_is_given_by_its_seed_and_leaves_other_randomness_alone(minilm):
    state = torch.random.get_rng_state()
    first, again, other = (pretrained.untrained("minilm", seed).model.state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    name = "encoder.layer.3.output.dense.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert {key: value.shape for key, value in first.items()} == {
        key: value.shape for key, value in minilm.model.state_dict().items()
    }


@pytest.mark.weights
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_loading_asks_no_network(name, minilm, smollm2, no_network):
    pretrained.load(name)


@pytest.mark.parametrize("call", [pretrained.load, partial(pretrained.untrained, seed=0)])
def test_what_is_missing_is_said_in_words(call, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="name must be one of minilm, smollm2; not 'gpt5'"):
        call("gpt5")

    for package in pretrained.NEEDED:
        pytest.importorskip(package)
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path))
    with pytest.raises(cache.DataMissing, match="pdelab data get smollm2"):
        call("smollm2")
    assert not list(tmp_path.iterdir())

    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r'smollm2 needs packages .*gguf.*pip install "pdelab\[probe\]"'):
        call("smollm2")


def test_importing_the_module_loads_none_of_the_packages():
    code = cleandoc("""
        import sys
        from pdelab import pretrained
        print([name for name in pretrained.NEEDED if name in sys.modules])
    """)
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
