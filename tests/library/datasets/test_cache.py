"""Public files: whole or refused, nothing half-written, and clear words when there is no network."""

import hashlib
import os
import pickle
import sys
import threading
import time
import zlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from sklearn.utils import Bunch

from pdelab.datasets import cache, texts

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


@pytest.mark.parametrize("name", ["tiny", "newsgroups"])
def test_a_folder_that_cannot_be_written_is_named(register, tmp_path, monkeypatch, name):
    real = cache.SOURCES["newsgroups"]
    register("http://127.0.0.1:9/none")
    cache.SOURCES["newsgroups"] = real
    (tmp_path / "a file").write_text("no folder can be made below a file")
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "a file" / "cache"))
    with pytest.raises(cache.DataMissing, match=r"a file.*cannot be written.*PDELAB_DATA"):
        cache.get(name)


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
    ]
    assert all(entry.bytes > 1e6 and entry.credit and entry.problem for entry in cache.listing())
    assert not folder.exists()


def test_the_registry_holds_safe_addresses_and_whole_checksums():
    for source in cache.SOURCES.values():
        for file in source.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert all(url.startswith("https://") for url in file.urls)


def test_unknown_names_are_refused_with_the_known_ones(folder):
    for call in (cache.get, cache.verify):
        with pytest.raises(ValueError, match="mnist, newsgroups, tinyshakespeare; not 'cifar'"):
            call("cifar")
    with pytest.raises(ValueError, match=r"tinyshakespeare/input\.txt; not 'cifar'"):
        cache.fetch("cifar")


def test_the_folder_is_the_named_one_or_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PDELAB_DATA", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "data"
    for unnamed in (lambda: monkeypatch.setenv("PDELAB_DATA", ""), lambda: monkeypatch.delenv("PDELAB_DATA")):
        unnamed()
        assert cache.folder().name == "pdelab"


HEAD = "From: someone@nasa.gov\nSubject: orbit\n\n"
GROUPS = ["rec.autos", "sci.space"]
POSTS = {
    "train": ([HEAD + "The orbit, the moon!", HEAD + "the car", HEAD], [1, 0, 1]),
    "test": ([HEAD + "> the quoted moon\nthe wheel"], [0]),
}


def posts(order=slice(None)):
    return {
        part: Bunch(
            data=data[order], target=np.array(target[order]), target_names=GROUPS, filenames=np.array(data), DESCR=None
        )
        for part, (data, target) in POSTS.items()
    }


def packed(content, level=6):
    return zlib.compress(pickle.dumps(content), level)


@pytest.fixture
def pkz(folder, monkeypatch):
    """The place of the newsgroups, with a registry that expects the four posts above."""
    real = cache.SOURCES["newsgroups"]
    file = replace(real.files[0], sha256=cache.newsgroups_digest(posts()), texts=(3, 1))
    monkeypatch.setitem(cache.SOURCES, "newsgroups", replace(real, files=(file,)))
    (folder / "sklearn").mkdir(parents=True)
    return folder / "sklearn" / "20news-bydate_py3.pkz"


def test_newsgroups_are_known_by_their_texts_not_by_their_bytes(pkz):
    for content in (packed(posts()), packed(posts(), level=1), packed(posts(slice(None, None, -1)))):
        pkz.write_bytes(content)
        assert cache.verify("newsgroups") == cache.get("newsgroups") == [pkz]


def test_newsgroups_come_through_scikit_learn_without_headers_and_quotes(pkz):
    pkz.write_bytes(packed(posts()))
    data = texts.load("newsgroups", length=3, words=2)
    assert data.source == "public"
    assert data.symbols == 4
    # the vocabulary is "the" and, first by the alphabet of those seen once, "car"
    train = zip(data.train.x.tolist(), data.train.y.tolist(), data.train.mask.sum(dim=1).tolist(), strict=True)
    rows = {tuple(row): (y, length) for row, y, length in train}
    assert rows == {(2, 1, 2): (1, 3), (2, 3, 0): (0, 2), (1, 0, 0): (1, 1)}
    assert data.test.x.tolist() == [[2, 1]]


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def broken(content, tmp_path):
    other = posts()
    other["test"].data = ["another text"]
    return {
        "cut": content[: len(content) // 2],
        "changed": content[:50] + b"\0" + content[51:],
        "empty": b"",
        "not a pickle": zlib.compress(b"hello"),
        "no posts": packed({"train": []}),
        "fewer": packed({**posts(), "train": posts(slice(2))["train"]}),
        "other texts": packed(other),
        "code": packed({**posts(), "more": Evil(tmp_path / "marker")}),
    }


@pytest.mark.parametrize(
    "kind", ["cut", "changed", "empty", "not a pickle", "no posts", "fewer", "other texts", "code"]
)
def test_a_damaged_pkz_is_refused_and_kept_and_runs_nothing(pkz, tmp_path, folder, kind):
    content = broken(packed(posts()), tmp_path)[kind]
    pkz.write_bytes(content)
    for use in (lambda: cache.verify("newsgroups"), lambda: texts.load("newsgroups")):
        with pytest.raises(cache.DataDamaged) as error:
            use()
        assert str(pkz) in str(error.value)
        assert "pdelab data get newsgroups" in str(error.value)
    assert pkz.read_bytes() == content
    assert files_in(folder) == ["sklearn/20news-bydate_py3.pkz"]
    assert not (tmp_path / "marker").exists()


def test_the_plain_unpickler_names_the_function_it_refuses(pkz, tmp_path):
    pkz.write_bytes(packed(Evil(tmp_path / "marker")))
    with pytest.raises(pickle.UnpicklingError, match=f"{os.system.__module__}.system"):
        cache.read_newsgroups(pkz)
    pickle.loads(pickle.dumps(Evil(tmp_path / "marker")))  # the same file, opened by pickle itself, would have run it
    assert (tmp_path / "marker").exists()


def test_newsgroups_are_downloaded_beside_and_moved_when_whole(pkz, folder, monkeypatch):
    def download(data_home, **options):
        assert files_in(folder) == []
        with open(os.path.join(data_home, pkz.name), "wb") as file:
            file.write(packed(posts()))

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", download)
    assert cache.fetch("sklearn/20news-bydate_py3.pkz") == pkz
    assert [path.name for path in folder.rglob("*")] == ["sklearn", pkz.name]


def offline(data_home, **options):
    (open(os.path.join(data_home, "half"), "wb")).close()
    raise URLError("no route to host")


def other(data_home, **options):
    with open(os.path.join(data_home, "20news-bydate_py3.pkz"), "wb") as file:
        file.write(packed({**posts(), "train": posts(slice(2))["train"]}))


@pytest.mark.parametrize("download", [offline, other])
def test_a_failed_download_of_newsgroups_says_what_to_do_and_changes_nothing(pkz, folder, monkeypatch, download):
    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", download)
    pkz.write_bytes(b"damaged")
    with pytest.raises(cache.DataMissing) as error:
        cache.get("newsgroups")
    for said in (str(pkz), "figshare", "fetch_20newsgroups(data_home=FOLDER)", "PDELAB_DATA", "synthetic-topics"):
        assert said in str(error.value)
    assert pkz.read_bytes() == b"damaged"
    assert [path.name for path in folder.rglob("*")] == ["sklearn", pkz.name]
