"""On a Dask cluster and under torchrun: whatever dies, the same command ends with the results of a quiet run."""

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import children
import psutil
import pytest
import torch
from children import EXPERIMENT, figures, quiet, until
from click.testing import CliRunner
from distributed import Client

import pdelab
from pdebook.cli import main
from pdebook.evidence import run as runner
from pdebook.ledger.record import Store

SEEDS = 4
LIMIT = 240  # seconds: longer than any busy machine takes
GONE = "pdelab: the scheduler is gone; start it and the workers, and the same command goes on with what is left"


def words(seeds=SEEDS):
    return "run", EXPERIMENT, "--scale", "smoke", "--seeds", str(seeds)


class Machines:
    """A scheduler and workers, each a process of its own, with one folder of data for all and one for results.

    Each has a `git` that calls the commit of the code by the machine's name: so a Result says who had a part in it.
    """

    def __init__(self, folder):
        self.folder, self.begun, self.workers = folder, [], {}

    def begin(self, *words, name="command", **options):
        """`python -m` with these words, in a session of its own, on the machine of this name."""
        path = self.folder / "machines" / name
        path.mkdir(parents=True, exist_ok=True)
        top = Path(pdelab.__file__).resolve().parents[1]
        (path / "git").write_text(f"#!/bin/sh\ncase \"$*\" in *rev-parse*) printf '%s\\n' '{top}' {name};; esac\n")
        (path / "git").chmod(0o755)
        env = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        self.begun.append(children.module(*words, env=env, start_new_session=True, **options))
        return self.begun[-1]

    def dask(self, *words, name):
        """A scheduler or worker, which writes a log."""
        place = ("--host", "127.0.0.1", "--no-dashboard")
        with (self.folder / f"{name}.log").open("a") as log:
            return self.begin("dask", *words, *place, name=name, stdout=log, stderr=log)

    def start(self, *names):
        """A scheduler, and workers of these names."""
        known = self.folder / f"scheduler-{len(self.begun)}.json"
        self.scheduler = self.dask("scheduler", "--port", "0", "--scheduler-file", str(known), name="scheduler")
        until(lambda: known.exists() and known.read_text().endswith("}"))
        self.address = json.loads(known.read_text())["address"]
        self.join(*names)

    def join(self, *names):
        """Workers of these names, once the scheduler has them."""
        alone = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder / "scratch"))
        for name in names:
            self.workers[name] = psutil.Process(self.dask("worker", self.address, *alone, name=name).pid)
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=LIMIT)

    def command(self, *options, seeds=SEEDS):
        return self.begin("pdebook", *words(seeds), "--cluster", self.address, *options)

    def kill(self, name):
        worker = self.workers.pop(name)
        worker.kill()
        worker.wait()

    def end(self):
        """Of every process, whatever became of the test."""
        for process in self.begun:
            with process:  # closes its pipes
                family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
                process.kill()
                for one in family:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()

    @property
    def recorded(self):
        """Every Result by its seed, after a look that there is nothing else."""
        found, damaged = Store(self.folder / "results").survey()
        assert not damaged
        files = sorted(path.name for path in (self.folder / "results").rglob("*") if path.is_file())
        assert files == [f"smoke-seed{r.seed}.json" for r in found]
        return {r.seed: r for r in found}

    def made_by(self):
        """Whom each Result names, in order."""
        return {seed: r.environment["commit"] for seed, r in self.recorded.items()}

    def kept(self):
        """The folders of runs that are not recorded."""
        return sorted((self.folder / "data" / "runs" / EXPERIMENT).glob("*"))


def in_the_middle(process):
    """The run's folder in a list, where a process trains what is not yet kept and has kept something before."""
    locks = [Path(one.path) for one in process.open_files() if Path(one.path).name == ".lock"]
    begun = [lock.parent for lock in locks if not (lock.parent / "checkpoint.pt").exists()]
    return [training.parent for training in begun if any(training.parent.rglob("checkpoint.pt"))]


def caught(those):
    """Name and run of a process that is halted in the middle of it; those() are the processes by name."""
    found = []

    def one_is():
        for name, process in those().items():
            if in_the_middle(process):
                process.suspend()
                until(lambda one=process: one.status() == psutil.STATUS_STOPPED)
                found.extend((name, run) for run in in_the_middle(process))
                if found:
                    return True
                process.resume()
        return False

    until(one_is)
    return found[0]


def seed_of(run):
    return int(run.name.removeprefix("smoke-seed"))


def finished(out):
    """The seeds whose end was told, as often as it was."""
    return sorted(int(line.split("seed ")[1].split(":")[0]) for line in out.splitlines() if ": finished, " in line)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PDELAB_RESULTS", str(tmp_path / "results"))
    found = Machines(tmp_path)
    yield found
    found.end()


def as_if_nothing_had_happened(machines, seeds=SEEDS):
    assert [figures(r) for r in machines.recorded.values()] == [quiet(seed) for seed in range(seeds)]
    assert not machines.kept()


def test_a_run_whose_worker_is_killed_goes_on_at_another_and_every_result_arrives_once(machines):
    machines.start("one", "two")
    process = machines.command("--quiet")
    killed, run = caught(lambda: machines.workers)
    machines.kill(killed)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert f"{SEEDS} to run on the cluster {machines.address}, 2 at a time" in out
    assert finished(out) == list(range(SEEDS))
    as_if_nothing_had_happened(machines)
    (other,) = machines.workers
    assert machines.made_by()[seed_of(run)] == f"{killed}, {other}"


def test_after_the_death_of_the_scheduler_the_same_command_does_what_is_left(machines):
    machines.start("one", "two")
    process = machines.command()
    until(lambda: list((machines.folder / "results").rglob("smoke-seed*.json")))
    halted, run = caught(lambda: machines.workers)
    machines.scheduler.kill()
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert err.splitlines() == [f"connecting to {machines.address}", GONE]

    machines.workers[halted].resume()
    for name in ("one", "two"):  # they keep what they are at, and end
        assert machines.workers.pop(name).wait(timeout=LIMIT) == 0
    there = machines.recorded
    assert [figures(r) for r in there.values()] == [quiet(seed) for seed in there]
    assert run in machines.kept()

    machines.start("three")
    process = machines.command()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert f"{len(there)} recorded already" in out
    assert f"{SEEDS - len(there)} to run on" in out
    assert finished(out) == sorted(set(range(SEEDS)) - set(there))
    assert there.items() <= machines.recorded.items()
    as_if_nothing_had_happened(machines)
    assert machines.made_by()[seed_of(run)] == f"{halted}, three"


def test_after_ctrl_c_the_workers_keep_what_they_have_and_the_same_command_goes_on(machines):
    machines.start("one")
    process = machines.command()
    _, run = caught(lambda: machines.workers)
    process.send_signal(signal.SIGINT)
    assert any("Ctrl-C again leaves them" in line for line in process.stderr)
    machines.workers["one"].resume()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert f"{EXPERIMENT}, smoke, seed {seed_of(run)}: stopped after step" in err
    assert err.endswith("The same command goes on with what is left.\n")
    assert "Traceback" not in err
    assert finished(out) == list(machines.recorded)
    assert run in machines.kept()

    machines.kill("one")
    machines.join("two")
    process = machines.command()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert seed_of(run) in finished(out)
    as_if_nothing_had_happened(machines)
    assert machines.made_by()[seed_of(run)] == "one, two"


def test_again_clears_what_the_workers_have_kept_of_a_finished_run_and_not_what_was_begun(machines):
    job = runner.Job(EXPERIMENT, "smoke", 0)
    found = runner.do(job)  # its trainings are kept
    done = job.folder / "done"
    done.touch()  # as a worker leaves it on a disk of its own
    Store(machines.folder / "results").save(replace(found, figures={"wrong": 1.0}))
    machines.start("one", "two")
    process = machines.command("--again", "--quiet", seeds=1)
    until(lambda: not done.exists())  # cleared
    killed, _ = caught(lambda: machines.workers)
    machines.kill(killed)
    out, err = process.communicate(timeout=LIMIT)
    assert (finished(out), err) == ([0], "")
    as_if_nothing_had_happened(machines, seeds=1)
    (other,) = machines.workers
    assert machines.made_by() == {0: f"{killed}, {other}"}


def pdelab_says(*options, code):
    """All that `pdelab run` says, to an end that has this exit code."""
    result = CliRunner().invoke(main, [*words(), *options])
    assert result.exit_code == code, result.output
    return result.output


def told_of_no_scheduler(address):
    why = f"no scheduler answers at --cluster {address}; `dask scheduler` starts one and prints its address"
    assert pdelab_says("--cluster", address, "--quiet", code=1) == f"pdelab: {why}\n"


def test_where_nobody_answers_it_is_said():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    told_of_no_scheduler(address)


def test_where_somebody_else_answers_it_is_said():
    def greet():
        with server.accept()[0] as line:
            line.sendall(b"SSH-2.0-OpenSSH\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        told_of_no_scheduler(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_a_name_that_no_machine_can_have_is_no_scheduler_s():
    told_of_no_scheduler("tcp://node..one:8786")


NO_ADDRESS = ["nonsense", "", "node", "8786", "tcp://node", "node:port", "node:0", "http://node:8787", "ucx://node:1"]


@pytest.mark.parametrize("address", NO_ADDRESS)
def test_what_is_no_address_is_not_understood(address):
    said = pdelab_says("--cluster", address, code=2)
    assert said.endswith(f"Error: --cluster {address!r} is no address of a scheduler, such as tcp://node:8786\n")


def test_an_encrypted_address_needs_certificates():
    said = pdelab_says("--cluster", "tls://node:8786", code=2)
    assert said.endswith("Error: --cluster tls://node:8786 needs certificates, and Dask's configuration names none\n")


def test_a_cluster_does_as_many_runs_as_it_has_workers():
    said = pdelab_says("--cluster", "tcp://node:8786", "--jobs", "2", code=2)
    assert said.endswith("Error: --jobs makes no sense with --cluster: it runs as many as it has workers\n")


def test_without_dask_it_is_said_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "pdebook.evidence.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = pdelab_says("--cluster", "tcp://node:8786", code=2)
    assert said.endswith('Error: --cluster needs distributed: pip install "pdelab[cluster]"\n')


def ranks(process):
    """The processes that torchrun started, by their rank."""
    begun = psutil.Process(process.pid).children()
    return {int(one.environ()["RANK"]): one for one in begun if "RANK" in one.environ()}


def test_one_process_of_torchrun_is_killed_and_the_same_command_reaches_the_figures_of_one(machines):
    """First the second process is killed, then the first. To rounding: within torch's own tolerances for float32."""
    together = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pdebook", *words(seeds=1))
    for name, killed in ("one", 1), ("two", 0):
        process = machines.begin(*together, name=name)
        caught(partial(ranks, process))  # the first, which alone keeps something
        both = ranks(process)
        both[killed].kill()
        if killed:
            both[0].resume()
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 1
        assert not finished(out)
        assert ("a process that trains with this one is gone; the same command goes on" in err) == (killed == 1)
        assert not machines.recorded
        assert machines.kept()

    process = machines.begin(*together, name="three")
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert finished(out) == [0]
    assert not machines.kept()
    (found,) = machines.recorded.values()
    assert found.environment["commit"] in ("one, two, three", "one, three")  # the second may have kept nothing yet
    assert found.environment["processes"] == "2"
    for part, known in zip(figures(found), quiet(0), strict=True):
        assert part.keys() == known.keys()
        for name in known:
            one, two = (torch.tensor(values[name], dtype=torch.float32) for values in (known, part))
            torch.testing.assert_close(two, one, msg=lambda words, name=name: f"{name}: {words}")


def test_a_mistyped_name_is_one_sentence_of_the_first_process(machines):
    together = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pdebook")
    process = machines.begin(*together, "run", "no-such-thing", "--scale", "smoke", name="mistyped")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert err.count("no-such-thing") == 1
    assert "Connection closed" not in err


@pytest.mark.parametrize("option", ["--cluster=tcp://node:8786", "--jobs=2"])
def test_what_torchrun_cannot_do_is_refused(option, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert f"Error: {option.split('=')[0]} makes no sense with torchrun: " in pdelab_says(option, code=2)
