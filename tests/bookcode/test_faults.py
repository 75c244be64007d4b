"""Whatever happens to a command, its workers or its disk, the same command ends with the results of a quiet run."""

import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import children
import psutil
import pytest
from children import EXPERIMENT, all_gone, figures, quiet, until
from click.testing import CliRunner

from pdebook.cli import main
from pdebook.ledger import read_claims
from pdebook.ledger.record import Store

SEEDS = 2
WORDS = ("run", EXPERIMENT, "--scale", "smoke", "--seeds", str(SEEDS))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PDELAB_RESULTS", str(tmp_path / "results"))
    return tmp_path


def begin(*words, **options):
    """The command, in a session of its own, so that one can see when all its processes are gone."""
    return children.command(*words, start_new_session=True, **options)


def ends_as_if_nothing_had_happened(places, jobs):
    for part in (places / "results").rglob(".*.part"):  # a save that was killed
        os.utime(part, (0, 0))  # long ago
    process = begin(*WORDS, "--jobs", str(jobs))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    found, damaged = Store(places / "results").survey()
    assert [r.seed for r in found] == list(range(SEEDS))
    assert [figures(r) for r in found] == [quiet(seed) for seed in range(SEEDS)]
    assert not damaged
    files = {path.name for path in (places / "results").rglob("*") if path.is_file()}
    assert files == {f"smoke-seed{seed}.json" for seed in range(SEEDS)}  # nothing half-written is left
    assert not list((places / "data" / "runs" / EXPERIMENT).glob("*"))


def terminate(process):
    process.send_signal(signal.SIGTERM)


def terminate_all(process):
    """As a cluster does it: parent and workers at once."""
    os.killpg(process.pid, signal.SIGTERM)


def kill(process):
    process.kill()


def kill_worker(process):
    """A child that computes: not multiprocessing's own, which looks after what the others share."""
    children = psutil.Process(process.pid).children()
    next(child for child in children if "resource_tracker" not in " ".join(child.cmdline())).kill()


def deaf_to_ctrl_c():
    """As a shell starts a job in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("harm", "jobs", "code", "options"),
    [
        (terminate, 1, 130, {"preexec_fn": deaf_to_ctrl_c}),
        (terminate, 2, 130, {}),
        (terminate_all, 2, 130, {}),
        (kill, 1, -9, {}),
        (kill, 2, -9, {}),
        (kill_worker, 2, 1, {}),
    ],
)
def test_the_same_command_goes_on_after_a_signal_at_any_moment(harm, jobs, code, options, places):
    """At a moment drawn anew for every test: after so many checkpoints, or before there is one, and a little later."""
    kept, pause = random.randint(0, 3), random.uniform(0, 0.5)  # a fourth is there for a moment only
    print(f"{harm.__name__} {pause:.3f} s after {kept} checkpoints")  # shown where the test fails
    process = begin(*WORDS, "--jobs", str(jobs), **options)
    assert f"{SEEDS} to run" in process.stdout.readline()
    runs = places / "data" / "runs"
    until(lambda: process.poll() is not None or len(list(runs.rglob("checkpoint.pt"))) >= kept)
    if harm is kill_worker:
        until(lambda: len(psutil.Process(process.pid).children()) > jobs)
    time.sleep(pause)

    harm(process)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err
    until(lambda: all_gone(process), seconds=10)
    ends_as_if_nothing_had_happened(places, jobs)


def test_two_commands_on_one_store_do_not_disturb_each_other(places):
    """Each run is done by one of them, or by both after each other; what the other is at is named."""
    both = [begin(*WORDS, "--jobs", "1") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=240)
        assert "Traceback" not in err
        assert process.returncode == 0 or "in use by another run" in err, (out, err)
    ends_as_if_nothing_had_happened(places, jobs=1)


def limit_files(size):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def obey_permissions():
    """On Linux a superuser may write anywhere, unless the right is taken away: PR_CAPBSET_DROP, CAP_DAC_OVERRIDE."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


@pytest.mark.parametrize("what", ["results", "data"])
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_computed(what, places):
    (places / what).mkdir()
    (places / what).chmod(0o555)
    process = begin(*WORDS, preexec_fn=obey_permissions)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "nothing can be written here: Permission denied" in err
    assert str(places / what) in err


def test_a_disk_that_is_full_is_noticed_before_anything_is_computed(places):
    process = begin(*WORDS, preexec_fn=limit_files(10_000))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "nothing can be written here: File too large" in err


def test_a_disk_that_fills_up_meanwhile_loses_nothing(places):
    """There is room for the trial, but not for a checkpoint."""
    process = begin(*WORDS, "--jobs", "2", preexec_fn=limit_files(2**16))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    for seed in range(SEEDS):
        assert f"seed {seed}: failed, [Errno 27] File too large" in err
    assert "checkpoint.pt" in err
    assert "Traceback" not in err
    ends_as_if_nothing_had_happened(places, jobs=2)


def test_a_result_that_cannot_be_saved_does_not_end_the_other_runs(places):
    store = Store(places / "results")
    store.path("heat_ends", "book", 1).mkdir(parents=True)  # where the file should go
    process = begin("run", "heat_ends", "--seeds", "3", "--jobs", "1", "--again")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "heat_ends, book, seed 1: failed" in err
    assert str(store.path("heat_ends", "book", 1)) in err
    assert [r.seed for r in store.survey("heat_ends")[0]] == [0, 2]


FOREIGN = {"notes.json": "[1, 2]", "book-seed7.json": '{"sha256": "', "book-seed8.json": "[" * 100_000}


def test_one_damaged_or_foreign_file_never_hides_the_good_ones(places):
    def words(*asked, code=1):
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == code, result.output
        return result.output

    words("run", "heat_ends", "--seeds", "2", "--jobs", "1", "--again", code=0)
    folder = places / "results" / "heat_ends"
    for name, text in FOREIGN.items():
        (folder / name).write_text(text)

    for asked, good in (["results"], "heat_ends"), (["results", "heat_ends"], "mean_kept"), (["doctor"], "2 in"):
        found = words(*asked)
        assert good in found
        assert all(name in found for name in FOREIGN)

    store = ("--store", str(places / "results"))
    claim = next(one for one in read_claims() if one.evidence.get("experiment"))
    broken = places / "results" / claim.evidence["experiment"] / "book-seed0.json"
    broken.parent.mkdir()
    broken.write_text("{")
    found = words("claims", *store)
    assert str(broken) in found
    assert all(one.id in found for one in read_claims())


def test_a_run_from_a_folder_that_is_not_installed(places):
    """As on a notebook server into which the repository was copied: the folders are on the path, and no more."""
    root = Path(__file__).resolve().parents[2]
    code = (
        "import importlib.metadata as m; real = m.version\n"
        "def version(name):\n"
        "    if name == 'pdelab': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "from pdebook.cli import main; main(['run', 'heat_ends', '--seeds', '1', '--again'])"
    )
    path = os.pathsep.join(map(str, (root, root / "book")))
    env = os.environ | {"PYTHONPATH": path}
    child = subprocess.run([sys.executable, "-c", code], env=env, cwd=places, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    (result,) = Store(places / "results").load("heat_ends")
    assert result.environment["pdelab"] == "unknown"
