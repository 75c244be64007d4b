"""Evidence for the ledger, nothing skipped in CI, and notebooks compared with their pictures and with patience."""

import os
from collections import Counter, defaultdict
from functools import partial

import fonts
import nbval.plugin
import pictures
import pytest
import torch
from hypothesis import settings

from pdebook.ledger import FINDINGS, check_name
from pdebook.ledger.record import Result, Store

fonts.prepare()
settings.register_profile("pdelab", deadline=None, max_examples=25)  # a busy machine is no fault of the code
settings.load_profile("pdelab")


def pytest_addoption(parser):
    parser.addoption("--record-claims", action="store_true", help="store what the tests marked `claim` find")


def pytest_configure(config):
    config.findings = defaultdict(dict)  # claim id -> {test: set of findings}
    config.skipped = []
    config.pluginmanager.register(Skipped(config.skipped))
    config.pluginmanager.register(Notebooks())
    if config.option.record_claims and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--record-claims needs one process, which sees every finding: leave out -n")
    torch.set_num_threads(1)  # the tensors of the tests are small, and two threads get in each other's way


@pytest.fixture(autouse=True)
def one_draw():
    """What a test draws from torch's own generator does not depend on the tests before it."""
    torch.manual_seed(0)


class Notebooks:
    """As a plugin of its own: the hooks of a conftest.py see only what lies in its folder, and the book does not."""

    def pytest_itemcollected(self, item):
        if isinstance(item, nbval.plugin.IPyNbCell):
            item.output_timeout = 60  # nbval gives the last output 5 s to arrive, which a busy machine can miss
            item.compare_outputs = partial(same_outputs, item)


def same_outputs(cell, new, stored) -> bool:
    """nbval's comparison, and that of the pictures; what was written to stderr is shown and not compared.

    Another version of a library warns of other things, which is no fault of the page.
    """
    if warned := "".join(output.text for output in new if output.get("name") == "stderr"):
        cell.warn(pytest.PytestWarning(warned))
    if not type(cell).compare_outputs(cell, new, stored, (*cell.parent.skip_compare, "image/svg+xml", "stderr")):
        return False

    words = pictures.difference(new, stored)
    cell.comparison_traceback.append(words)
    return not words


class Skipped:
    """Notes what was skipped, also by the processes that tests are shared out to."""

    def __init__(self, names: list[str]):
        self.names = names

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.names.append(report.nodeid)


def test_name(item) -> str:
    """A test with several parameters is one test."""
    return item.nodeid.split("[")[0]


@pytest.fixture
def evidence(request):
    """What a test marked `claim` found: evidence("printed", holds=…, fails=…), or "repair" for our statement.

    Neither is the finding `undecided`. The test fails if the finding is not the recorded one: the ledger would lie.
    """
    (claim_id,) = request.node.get_closest_marker("claim").args

    def report(statement: str, *, holds: bool, fails: bool) -> None:
        assert not (holds and fails), "holds and fails exclude each other"
        finding = f"{statement}_holds" if holds else f"{statement}_fails" if fails else "undecided"
        request.config.findings[claim_id].setdefault(test_name(request.node), set()).add(finding)
        if not request.config.option.record_claims:
            recorded = [
                r.configuration["tests"].get(test_name(request.node)) for r in Store().load(check_name(claim_id))
            ]
            assert recorded == [finding], f"found {finding}, recorded is {recorded}: look why, then make record"

    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for mark in item.iter_markers("claim"):
            item.config.findings[mark.args[0]].setdefault(test_name(item), set()).add("broken")
    return report


def pytest_sessionfinish(session, exitstatus):
    whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # not stopped on the way
    if session.config.option.record_claims and whole:
        for claim_id, tests in session.config.findings.items():
            record(claim_id, tests)
    if session.config.skipped and os.environ.get("CI") == "true":
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.skipped and os.environ.get("CI") == "true":
        terminalreporter.write_line(f"Nothing may be skipped in CI, {len(config.skipped)} tests were.", red=True)


def record(claim_id: str, tests: dict[str, set]) -> None:
    def together(findings: set) -> str:
        return "broken" if "broken" in findings else findings.copy().pop() if len(findings) == 1 else "undecided"

    found = {test: together(findings) for test, findings in sorted(tests.items())}
    counted = Counter(found.values())
    figures = {name: counted[name] for name in (*FINDINGS, "broken")}
    Store().save(Result(check_name(claim_id), {"tests": found}, "tests", 0, "finished", figures))
