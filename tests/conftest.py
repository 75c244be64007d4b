"""Evidence for the ledger, nothing skipped in CI, and patience with slow outputs."""

import os
from collections import defaultdict

import nbval.plugin
import pytest
from hypothesis import settings

from pdelab.ledger import SHOWS, check_name
from pdelab.results import Result, Store

settings.register_profile("pdelab", deadline=None, max_examples=25)  # a busy machine is no fault of the code
settings.load_profile("pdelab")


def pytest_addoption(parser):
    parser.addoption("--record-claims", action="store_true", help="store the outcomes of the tests marked `claim`")


def pytest_configure(config):
    config.claim_outcomes = defaultdict(dict)  # claim id -> {node id: (shows, passed)}
    config.skipped = []
    # nbval gives a cell's last output 5 s to arrive, which a busy machine can miss
    initialise = nbval.plugin.IPyNbCell.__init__

    def patient(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        self.output_timeout = 60

    nbval.plugin.IPyNbCell.__init__ = patient


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped:
        item.config.skipped.append(item.nodeid)
    if report.when == "call":
        for mark in item.iter_markers("claim"):
            item.config.claim_outcomes[mark.args[0]][item.nodeid] = (mark.kwargs["shows"], report.passed)
    return report


def pytest_sessionfinish(session):
    if session.config.option.record_claims:
        for claim_id, outcomes in session.config.claim_outcomes.items():
            record(claim_id, outcomes)
    if session.config.skipped and os.environ.get("CI") == "true":
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.skipped and os.environ.get("CI") == "true":
        terminalreporter.write_line(f"Nothing may be skipped in CI, {len(config.skipped)} tests were.", red=True)


def record(claim_id: str, outcomes: dict) -> None:
    figures = {shows: sum(s == shows and passed for s, passed in outcomes.values()) for shows in SHOWS}
    Store().save(
        Result(
            experiment=check_name(claim_id),
            configuration={"tests": {node: shows for node, (shows, _) in sorted(outcomes.items())}},
            scale="tests",
            seed=0,
            status="finished",
            figures=figures | {"failed": sum(not passed for _, passed in outcomes.values())},
        )
    )
