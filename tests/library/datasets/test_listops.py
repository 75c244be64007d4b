"""ListOps: two evaluators agree, and what is generated follows the exact laws of the published rule."""

import hashlib
import itertools
import math
import re
import runpy
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pdelab.datasets import listops
from pdelab.datasets.base import Dataset, Examples
from pdelab.datasets.listops import (
    GRAMMARS,
    OPERATORS,
    SYMBOLS,
    Grammar,
    acceptance,
    controls,
    evaluate,
    features,
    generate,
    length_law,
    load,
    mean_length,
    read_tsv,
    seen,
    to_text,
)

CHANCE = 1e-4  # a true law is refused this rarely; the seeds are fixed, so that it is refused always or never


def fits(counts, probabilities):
    """Pearson's test; neighbouring outcomes are put together until each class expects at least 5."""
    expected = np.asarray(probabilities, dtype=float) * np.sum(counts)
    classes, total = [], 0.0
    for value in expected:
        classes.append(int(total // 5))
        total += value
    classes = np.minimum(classes, max(int(total // 5) - 1, 0))
    observed, expected = (np.bincount(classes, weights=w) for w in (counts, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > CHANCE


def drawn_lengths(grammar, blocks, seed):
    bits = listops._Bits(seed)
    return np.concatenate([listops._draw(grammar, bits, 8192)[0] for _ in range(blocks)])


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_both_evaluators_agree(name):
    examples = generate(name, 1000 if "arena" in name else 3000, seed=1)
    for row, answer in zip(examples.x, examples.y.tolist(), strict=True):
        assert evaluate(to_text(row)) == answer
    for row, answer in zip(examples.x[:50], examples.y.tolist(), strict=False):
        assert evaluate(to_text(row, parentheses=True)) == answer


@given(
    operators=st.lists(st.sampled_from(OPERATORS), min_size=1, unique=True).map(tuple),
    max_depth=st.integers(2, 5),
    max_arguments=st.integers(2, 31),
    seed=st.integers(0, 2**40),
)
def test_both_evaluators_agree_in_any_grammar(operators, max_depth, max_arguments, seed):
    grammar = Grammar("any", operators, max_depth, max_arguments, min_length=3, max_length=200)
    examples = generate(grammar, 40, seed)
    texts = [to_text(row) for row in examples.x]
    assert [evaluate(text) for text in texts] == examples.y.tolist()
    assert {word[1:] for text in texts for word in text.split() if word[0] == "["} <= set(operators)


trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), st.lists(inner, min_size=1, max_size=5)),
    max_leaves=30,
)


def written(tree):
    return str(tree) if isinstance(tree, int) else f"[{tree[0]} {' '.join(map(written, tree[1]))} ]"


def paired(tree):
    """The published form: everything in parentheses with what stands left of it."""
    if isinstance(tree, int):
        return str(tree)
    text = f"[{tree[0]}"
    for argument in [*map(paired, tree[1]), "]"]:
        text = f"( {text} {argument} )"
    return text


def symbols(text):
    return torch.tensor([SYMBOLS.index(word) for word in text.split()])


@given(trees)
def test_all_written_forms_of_a_tree_have_one_value(tree):
    bare = written(tree)
    arena = paired(tree).replace("]", "X").replace("(", "").replace(")", "")
    forms = [bare, paired(tree), bare.replace(" ]", "]"), arena, arena.replace("[", "")]
    assert len({evaluate(form) for form in forms}) == 1


@given(trees)
def test_to_text_gives_both_published_forms(tree):
    row = symbols(written(tree))
    assert to_text(row) == to_text(torch.nn.functional.pad(row, (0, 3))) == written(tree)
    assert to_text(row, parentheses=True) == paired(tree)


@given(trees, st.data())
def test_a_tree_with_a_token_missing_is_refused_or_another_tree(tree, data):
    """What is left is never half a tree: it evaluates, or the fault has a position inside the text."""
    words = written(tree).split()
    lost = data.draw(st.integers(0, len(words) - 1))
    text = " ".join(words[:lost] + words[lost + 1 :])
    if words[lost].isdigit() and "[" in text and not re.search(r"\[\w+ \]", text):
        assert evaluate(text) in range(10)
    else:
        with pytest.raises(ValueError, match=r"at position \d+ stands"):
            evaluate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 8 ]", 2),
        ("[MAX 4 2 8 ]", 8),
        ("[MED 4 2 8 ]", 4),
        ("[MED 1 2 ]", 1),  # 1.5, cut
        ("[MED 9 0 8 3 ]", 5),  # (3 + 8)/2 = 5.5, cut
        ("[MED 9 9 9 0 ]", 9),
        ("[SM 9 8 7 ]", 4),
        ("[SM 5 5 ]", 0),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("( ( ( [MAX 2 ) 9 ) ] )", 9),
        ("( ( ( [SM ( ( ( [MIN 4 ) 7 ) ] ) ) 9 ) ] )", 3),
        ("[MED 1 [SM 9 9 X 3 X", 3),
        ("MAX 2 9 X", 9),
        ("  [MAX\t2 9]\n", 9),
    ],
)
def test_values_found_by_hand(text, value):
    assert evaluate(text) == value


def test_nesting_may_be_deeper_than_python_s_recursion():
    deep = 5 * sys.getrecursionlimit()
    assert evaluate("[MAX 1 " * deep + "4" + " ]" * deep) == 4


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "an operator or a digit"),
        ("   ", 3, "an operator or a digit"),
        ("[MAX 2 FOO ]", 7, "an operator, a digit or ']'"),
        ("[MAX 2 12 ]", 7, "an operator, a digit or ']'"),
        ("[MAX 2 ² ]", 7, "an operator, a digit or ']'"),
        ("[AVG 2 3 ]", 0, "an operator or a digit"),
        ("[MAX 2 9", 8, "']' for MAX at position 0"),
        ("[MAX 2 [MIN 9 ]", 15, "']' for MAX at position 0"),
        ("[MAX 2 [MIN 9", 13, "']' for MIN at position 7"),
        ("[MAX 2 9 ] ]", 11, "the end"),
        ("]", 0, "an operator or a digit"),
        ("X", 0, "an operator or a digit"),
        ("[MAX ]", 5, "an argument of MAX"),
        ("[MAX 2 [SM ] ]", 11, "an argument of SM"),
        ("[MAX 2 9 ] 3", 11, "the end"),
        ("3 4", 2, "the end"),
        ("( ( ( [MAX 2 ) 9 ) ]", 20, "')'"),
        ("( ( ( [MAX 2 ) 9 ) ] ) )", 23, "the end"),
        ("( ( ( [MAX 2 9 ) ] )", 13, "')'"),
        ("( ( [MAX 2 ) 9 ) ] )", 17, "1 arguments of MAX"),
        ("( ( ( ( [MAX 2 ) 9 ) ] )", 21, "3 arguments of MAX"),
        ("( ( ( [MAX 2 ) [MIN 4 ] ) ] )", 15, "parentheses before every operator or before none"),
        ("[MAX ( ( [MIN 4 ) ] ) ]", 9, "parentheses before every operator or before none"),
        ("( 3 )", 2, "an operator after '('"),
        ("(", 1, "an operator or a digit"),
        (")", 0, "an operator or a digit"),
        ("[MAX 2 ) 9 ]", 7, "an operator, a digit or ']'"),
    ],
)
def test_a_malformed_text_is_refused_with_the_place_of_the_fault(text, position, expected):
    with pytest.raises(ValueError, match="not a ListOps tree") as fault:
        evaluate(text)
    assert f"at position {position} stands" in str(fault.value)
    assert f"expected {expected}" in str(fault.value)


@pytest.mark.parametrize("wrong", [None, 5, b"[MAX 2 9 ]", ["[MAX", "2", "]"]])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(ValueError, match=f"text must be a string .* not {type(wrong).__name__}"):
        evaluate(wrong)


@pytest.mark.parametrize("row", [[16], [-1], [2.0, 9.0], [[2]]])
def test_to_text_refuses_what_is_no_symbol(row):
    with pytest.raises(ValueError, match=r"row must hold symbols 0 to 15|row must be a row of x"):
        to_text(torch.tensor(row))


@pytest.mark.parametrize("text", ["[MAX 1 2", "1 ]", "[MIN [MAX 1 2 ]"])
def test_to_text_refuses_to_pair_what_is_no_tree(text):
    with pytest.raises(ValueError, match="row must be a whole tree"):
        to_text(symbols(text), parentheses=True)


def test_the_arena_s_acceptance_and_mean_length():
    arena = GRAMMARS["listops-arena"]
    assert f"{acceptance(arena):.5f}" == "0.08276"
    assert f"{mean_length(arena):.2f}" == "1035.02"


def shapes(grammar, depth=1):
    """Every shape of tree from this depth on: its length and exact probability."""
    q = Fraction(grammar.probability)
    if depth == grammar.max_depth:
        return [(1, Fraction(1))]
    found = [(1, 1 - q)]
    for arguments in range(2, grammar.max_arguments + 1):
        for parts in itertools.product(shapes(grammar, depth + 1), repeat=arguments):
            share = q / (grammar.max_arguments - 1)
            found.append((2 + sum(n for n, _ in parts), share * math.prod(p for _, p in parts)))
    return found


@pytest.mark.parametrize(
    ("depth", "arguments", "q"), [(1, 2, 0.25), (2, 5, 0.25), (3, 3, 0.25), (4, 2, 0.625), (3, 4, 0.5)]
)
def test_the_length_law_is_that_of_all_shapes_counted_one_by_one(depth, arguments, q):
    grammar = Grammar("tiny", OPERATORS, depth, arguments, probability=q)
    p, rest = length_law(grammar)
    exact = np.zeros(len(p))
    for length, probability in shapes(grammar):
        exact[length] += float(probability)
    assert np.abs(p - exact).max() < 1e-15
    assert rest < 1e-12


def test_cutting_the_length_law_loses_nothing_below_the_cut():
    whole, _ = length_law(Grammar("whole", OPERATORS, 6, 4))
    cut, rest = length_law(Grammar("cut", OPERATORS, 6, 4, max_length=50))
    assert len(cut) == 50
    assert np.abs(cut - whole[:50]).max() < 1e-15
    assert rest == pytest.approx(whole[50:].sum(), abs=1e-12)


def test_the_mean_of_an_unlimited_tree_follows_from_its_branching():
    """E[length] at depth d is (1 − q) + q(2 + E[arguments]·E[length] at depth d + 1)."""
    mean = 1.0
    for _ in range(19):
        mean = 0.75 + 0.25 * (2 + 3.5 * mean)
    original = GRAMMARS["listops-original"]
    assert acceptance(original) == pytest.approx(0.25, abs=1e-12)  # all but the bare digits
    assert 0.75 + 0.25 * mean_length(original) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "blocks"), [("listops-arena", 16), ("listops-original", 8), ("listops-65", 20), ("listops-16", 20)]
)
def test_drawn_lengths_follow_the_exact_law(name, blocks):
    grammar = GRAMMARS[name]
    lengths = drawn_lengths(grammar, blocks, seed=12)
    p, rest = length_law(grammar)
    counts = np.bincount(np.minimum(lengths, len(p)), minlength=len(p) + 1)
    assert fits(counts, [*p, rest])
    accepted, share = grammar.accepts(lengths), acceptance(grammar)
    assert abs(accepted.mean() - share) < 4 * math.sqrt(share * (1 - share) / len(lengths))
    n = np.arange(len(p))
    spread = math.sqrt(((n - mean_length(grammar)) ** 2 * p)[grammar.accepts(n)].sum() / share)
    assert abs(lengths[accepted].mean() - mean_length(grammar)) < 4 * spread / math.sqrt(accepted.sum())


@pytest.mark.parametrize("name", ["listops-65", "listops-32-nosm"])
def test_generated_lengths_follow_the_law_of_accepted_trees(name):
    grammar = GRAMMARS[name]
    lengths = generate(name, 20_000, seed=2).mask.sum(dim=1).numpy()
    p, _ = length_law(grammar)
    assert grammar.accepts(lengths).all()
    assert fits(np.bincount(lengths, minlength=len(p)), np.where(grammar.accepts(np.arange(len(p))), p, 0))


@pytest.mark.parametrize("name", ["listops-arena", "listops-arena-nosm", "listops-original"])
def test_kinds_and_digits_are_uniform(name):
    grammar = GRAMMARS[name]
    counts = torch.bincount(generate(name, 1500, seed=3).x.flatten(), minlength=len(SYMBOLS)).numpy()
    digits = counts[SYMBOLS.index("0") :]
    kinds = counts[[SYMBOLS.index(f"[{kind}") for kind in grammar.operators]]
    assert fits(digits, np.full(10, 0.1))
    assert fits(kinds, np.full(len(kinds), 1 / len(kinds)))
    assert kinds.sum() == counts[1:5].sum() == counts[SYMBOLS.index("]")]


def test_numbers_of_arguments_are_uniform_and_a_quarter_of_the_nodes_are_operators():
    levels = listops._draw(Grammar("free", OPERATORS, 8, 10), listops._Bits(4), 8192)[1]
    arguments = np.concatenate([level.arguments for level in levels])
    assert fits(np.bincount(arguments, minlength=11)[2:], np.full(9, 1 / 9))
    inner = np.concatenate([level.operator for level in levels[:-1]])
    assert fits(np.bincount(inner, minlength=2), [0.75, 0.25])
    assert not levels[-1].operator.any()


@pytest.mark.parametrize("kind", OPERATORS)
def test_answers_follow_the_law_of_all_lists_of_digits(kind):
    """Depth 2 and two arguments: the hundred pairs of digits, each as likely as the others."""
    apply = {"MIN": min, "MAX": max, "MED": lambda pair: sum(pair) // 2, "SM": lambda pair: sum(pair) % 10}[kind]
    law = np.bincount([apply(pair) for pair in itertools.product(range(10), repeat=2)], minlength=10) / 100
    answers = generate(Grammar("pairs", (kind,), 2, 2, min_length=1), 20_000, seed=5).y
    assert fits(torch.bincount(answers, minlength=10).numpy(), law)


def test_examples_are_the_same_on_every_machine():
    examples = generate("listops-32", 500, seed=0)
    content = examples.x.numpy().astype(np.uint8).tobytes() + examples.y.numpy().astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == "24418e90097714bed7ab2e3e866186b673b69c89d4223874276384fa0aaa6115"


def test_asking_for_more_changes_none_of_the_first():
    few, many = generate("listops-260", 100, seed=6), generate("listops-260", 1000, seed=6)
    first = many.take(slice(0, 100))
    assert torch.equal(few.x, first.x)
    assert torch.equal(few.y, first.y)
    assert torch.equal(few.mask, first.mask)


def test_seeds_and_grammars_have_streams_of_their_own():
    texts = [to_text(generate(name, 1, seed).x[0]) for name in ("listops-65", "listops-65-nosm") for seed in (0, 1)]
    assert len(set(texts)) == 4


def test_what_examples_look_like():
    examples = generate("listops-65", 300, seed=7)
    assert examples.x.dtype == torch.int32
    assert examples.y.dtype == torch.int64
    assert torch.equal(examples.mask, examples.x != 0)
    assert examples.mask.sum(dim=1).max() == examples.x.shape[1]
    assert (examples.mask[:, :-1] >= examples.mask[:, 1:]).all()  # padding at the end
    assert torch.nn.Embedding(len(SYMBOLS), 4)(examples.x).shape == (*examples.x.shape, 4)


@pytest.mark.parametrize(("name", "longest"), [("listops-16", 16), ("listops-32", 32)])
def test_every_tree_of_the_small_grammars_is_nested(name, longest):
    x = generate(name, 5000, seed=8).x
    assert (((x > 0) & (x < SYMBOLS.index("]"))).sum(dim=1) >= 2).all()
    assert x.shape[1] == longest


def test_each_grammar_has_a_form_without_the_sum():
    plain = {name for name in GRAMMARS if not name.endswith("-nosm")}
    assert set(GRAMMARS) == plain | {f"{name}-nosm" for name in plain}
    assert all(("SM" in g.operators) == (name in plain) for name, g in GRAMMARS.items())
    assert all(g.name == name for name, g in GRAMMARS.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operators": ("MIN", "AVG")}, "operators must be"),
        ({"operators": ()}, "operators must be"),
        ({"operators": ["MIN"]}, "operators must be a tuple"),
        ({"max_depth": 0}, "max_depth must be a whole number of at least 1"),
        ({"max_arguments": 1}, "max_arguments must be a whole number from 2 to 31"),
        ({"max_arguments": 32}, "max_arguments must be a whole number from 2 to 31"),
        ({"probability": 1.0}, "probability must lie between 0 and 1"),
    ],
)
def test_a_grammar_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Grammar(**{"name": "wrong", "operators": OPERATORS, "max_depth": 3, "max_arguments": 3} | change)


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match=r"one of .*listops-130, .*listops-arena.*; not 'listops-7'"):
        generate("listops-7", 1, seed=0)
    with pytest.raises(ValueError, match="count must be a whole number of at least 1"):
        generate("listops-16", 0, seed=0)
    with pytest.raises(ValueError, match="accepts less than one tree in a million"):
        generate(Grammar("none", OPERATORS, 3, 3, min_length=100), 1, seed=0)
    with pytest.raises(ValueError, match="test must be a whole number of at least 1"):
        load("listops-16", train=10, test=0)


@pytest.fixture(scope="module")
def small():
    return load("listops-16-nosm", train=4000, test=1000)


def test_no_test_example_occurs_in_training(small):
    train, test = ({to_text(row) for row in part.x} for part in (small.train, small.test))
    assert not train & test
    assert (len(small.train), len(small.test)) == (4000, 1000)
    assert (small.name, small.source, small.classes, small.symbols) == ("listops-16-nosm", "generated", 10, 16)


def test_seen_finds_exactly_the_common_rows(small):
    """Also where the rows are padded to another width."""
    some = Examples(torch.nn.functional.pad(small.train.x[:7], (0, 5)), small.train.y[:7])
    assert seen(small.train, some).all()
    mixed = Examples(torch.cat([small.test.x[:3], small.train.x[:1]]), torch.zeros(4, dtype=torch.long))
    assert seen(small.train, mixed).tolist() == [False, False, False, True]


def test_a_grammar_with_too_few_trees_for_a_test_set_is_named(monkeypatch):
    monkeypatch.setitem(GRAMMARS, "pairs", Grammar("pairs", ("MIN",), 2, 2, min_length=1))  # a hundred trees
    with pytest.raises(ValueError, match="train must leave trees for the test set"):
        load("pairs", train=5000, test=10)


@pytest.mark.parametrize(
    ("name", "majority", "root_operator"), [("listops-arena", 0.171, 0.363), ("listops-65", 0.121, 0.253)]
)
def test_controls_score_what_is_known_of_them(name, majority, root_operator):
    """The known values were measured on 20,000 examples; four standard errors of the difference are allowed."""
    found = controls(load(name, train=4000, test=4000))
    for given_, known in ((found["majority"], majority), (found["root_operator"], root_operator)):
        assert abs(given_ - known) < 4 * math.sqrt(known * (1 - known) * (1 / 4000 + 1 / 20_000))
    assert found["majority"] < found["root_operator"] < found["boosted_tree"]


def test_the_boosted_tree_masters_lists_without_nesting():
    """Of a list of digits alone the features hold the answer itself: what it then misses is nesting."""
    grammar = Grammar("flat", ("MIN", "MAX", "MED", "SM"), 2, 4, min_length=1)
    data = Dataset("flat", "generated", generate(grammar, 3000, 0), generate(grammar, 1000, 1), 10, len(SYMBOLS))
    assert controls(data)["boosted_tree"] > 0.97


def test_features_of_one_example_by_hand():
    (row,) = features(symbols("[MED 3 [MAX 9 9 ] 8 4 [MIN 0 1 ] ]").unsqueeze(0))
    counts, own, rest = row[:15], row[15:25], row[25:]
    assert counts.tolist() == [1, 1, 1, 0, 3, 1, 1, 0, 1, 1, 0, 0, 0, 1, 2]
    assert own.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 0]
    # length, root, nested arguments; the root's own digits 3, 4, 8: number, least, greatest, median, sum modulo 10
    assert rest.tolist() == [13, SYMBOLS.index("[MED"), 2, 3, 3, 8, 4, 5]


def tsv(path, *lines, header="Source\tTarget"):
    path.write_text("\r\n".join([header, *lines]) + "\r\n")
    return path


def test_a_published_file_is_read_as_what_was_written(tmp_path):
    examples = generate("listops-65", 50, seed=9)
    texts = [to_text(row, parentheses=True) for row in examples.x]
    lines = [f"{text}\t{answer}" for text, answer in zip(texts, examples.y.tolist(), strict=True)]
    read = read_tsv(tsv(tmp_path / "basic_train.tsv", *lines))
    assert torch.equal(read.x, examples.x)
    assert torch.equal(read.y, examples.y)
    assert torch.equal(read.mask, examples.mask)


@pytest.mark.parametrize(
    ("lines", "header", "words"),
    [
        (["[MAX 2 9 ]\t9", "[MAX 2 9 ]\t2"], "Source\tTarget", r"line 3: Target is '2', the tree's is 9"),
        (["[MAX 2 9 ]\t9", "[MAX 2 9\t9"], "Source\tTarget", r"line 3: text is not .* at position 8"),
        (["[MAX 2 9 ]"], "Source\tTarget", r"line 2: Target is None"),
        (["[MAX 2 9 ]\t9"], "Source\tLabel", "columns Source and Target; Target is missing"),
        (["9\t[MAX 2 9 ]"], "a\tb", "Source and Target is missing"),
        ([], "Source\tTarget", "at least one example"),
    ],
)
def test_a_published_file_with_a_fault_is_refused_and_the_line_named(tmp_path, lines, header, words):
    with pytest.raises(ValueError, match=words):
        read_tsv(tsv(tmp_path / "basic_test.tsv", *lines, header=header))


def test_the_benchmark_s_plain_generator_draws_from_the_same_law(monkeypatch):
    benchmarks = Path(__file__).parents[3] / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    plain = runpy.run_path(str(benchmarks / "listops.py"))
    x, y = plain["plain"](300, 0, plain["sorted_median"])
    assert [evaluate(to_text(row)) for row in x] == y.tolist()
    assert np.array_equal(plain["plain"](20, 0, plain["numpy_median"])[1], y[:20])
    lengths, arena = (x > 0).sum(axis=1), GRAMMARS["listops-arena"]
    p, _ = length_law(arena)
    assert fits(np.bincount(lengths, minlength=len(p)), np.where(arena.accepts(np.arange(len(p))), p, 0))


def test_generating_needs_no_scikit_learn():
    code = "import sys, pdelab.datasets.listops; print('sklearn' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
