"""The pretrained networks, fetched once through the command that readers use and loaded once per process."""

import subprocess
import sys

import pytest

from pdelab import pretrained

NO_DATA = 3  # exit code of the command when data are missing


def fetched(name: str) -> pretrained.Pretrained:
    """The network; skips, which CI does not allow, where its packages are not here or its files not to be had."""
    for package in pretrained.NEEDED:
        pytest.importorskip(package, reason='not installed: pip install "pdelab[probe]"')
    done = subprocess.run([sys.executable, "-m", "pdebook", "data", "get", name], capture_output=True, text=True)
    if done.returncode == NO_DATA:
        pytest.skip(" ".join(line.strip() for line in done.stderr.splitlines()[:2]))
    assert done.returncode == 0, done.stderr
    return pretrained.load(name)


@pytest.fixture(scope="session")
def minilm():
    return fetched("minilm")


@pytest.fixture(scope="session")
def smollm2():
    return fetched("smollm2")
