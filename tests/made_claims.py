"""Claims and records made by hand, for the tests of the ledger."""

from pdebook.ledger import FINDINGS, Claim, judge
from pdebook.ledger.record import Key, Result

EVIDENCE = {"experiment": "e", "figure": "cosine", "control": "copy", "printed": "cosine", "tolerance": 0.005}
STRICT = {key: value for key, value in EVIDENCE.items() if key != "tolerance"}


def entry(**changes):
    """An entry of claims.yml, as YAML gives it."""
    given = {"id": "X-1", "title": "A claim", "where": "here", "kind": "measurement", "says": "so"}
    return given | {"chapter": "c", "rule": "reproduced"} | changes


def recorded(store, runs, experiment="e"):
    """One seed for each pair of figures and controls."""
    for seed, (figures, controls) in enumerate(runs):
        store.save(Result(experiment, {}, "book", seed, "finished", figures, controls))


def verdict_of(store, **changes):
    return judge(Claim(**entry(**changes)), store).verdict


def spread(centre, half=0.001):
    """Three values with this mean; Student's interval reaches 2.48 times `half` to either side."""
    return centre - half, centre, centre + half


def paired(ours, control, figure="cosine", name="copy"):
    """A figure and a control, seed by seed."""
    return [({figure: a}, {name: b}) for a, b in zip(ours, control, strict=True)]


def findings(**counts):
    """What the tests of a construction found."""
    return dict.fromkeys((*FINDINGS, "broken"), 0) | counts


def attack_run(**statements):
    """One seed of an attack: role_name=(violations, {neighbour: how often it was broken})."""
    figures, controls = {}, {}
    for key, (violations, broken) in statements.items():
        role, name = key.split("_", 1)
        figures |= {Key(role, name, "attempts"): 100, Key(role, name, "violations"): violations}
        figures |= {Key(role, name, "worst"): 1.5 if violations else 0.99}
        controls |= {Key(role, name, "broken", neighbour): times for neighbour, times in broken.items()}
    return figures, controls
