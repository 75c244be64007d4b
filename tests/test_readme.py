"""Every example of the README: its Python runs, and its commands do what is said beside them."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdebook import cli
from pdebook.evidence import run as runner

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^pdelab ([^#\n]+?) *(?:#.*)?$", README, re.MULTILINE)
MODEL = """
import torch

def make():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, torch.randn(4, 6, 8), lambda out: out.square().mean()
"""
LONG = ("tables", "corners-*")  # minutes or hours: that they are understood, and what they would run


def test_there_are_examples_and_commands():
    assert PYTHON
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("example", PYTHON)
def test_an_example_runs(example, capsys):
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood_and_ends_well(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PDELAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(MODEL)
    asked = []
    if any(name in command for name in LONG):
        monkeypatch.setattr(runner, "do_all", lambda todo, store, **options: asked.extend(todo) or iter(()))

    done = CliRunner().invoke(cli.main, shlex.split(command))

    assert done.exit_code == 0, done.output
    assert done.output
    assert not any(name in command for name in LONG) or asked
