#!/bin/sh
# Makes .venv with the exact packages of requirements.lock and pdelab itself. `make` runs it; after an interruption it
# goes on where it stopped. PYTHON=python3.12 chooses the interpreter of a new .venv.
set -u
cd "$(dirname "$0")/.." || exit 1

stop() { printf '\npdelab: %s\n' "$*" >&2; exit 1; }
trap 'stop "interrupted; run the same command again to go on."' INT
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# The first Python that is new enough; failing that, the first that exists, so that the message can name its version.
choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 && echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if new_enough "$candidate"; then echo "$candidate"; return; fi
        old=${old:-$candidate}
    done
    echo "${old:-}"
}

# pip's complaints go to a log, so that the reader gets one sentence instead of a page.
pip_install() {
    .venv/bin/python -m pip install --disable-pip-version-check --retries 2 "$@" 2>.venv/setup.log && return
    grep -qiE 'connection|name resolution|resolve host|name or service not known|timed out|unreachable' .venv/setup.log &&
        stop "the packages could not be downloaded; check the network connection, then run the same command again (pip's own words: .venv/setup.log)."
    stop "the packages could not be installed: $(grep '^ERROR' .venv/setup.log | tail -n 1) Mend that, then run the same command again (all of pip's words: .venv/setup.log)."
}

# An environment that was begun and not finished, has no pip, or was made in another folder is made anew.
usable() {
    new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 &&
        { [ ! -f .venv/ready ] || [ "$(cat .venv/ready)" = "$(pwd -P)" ]; }
}

[ -w . ] || stop "this folder cannot be written to; copy the project to a folder of yours, then run the same command there."
if ! usable; then
    python=$(choose_python)
    [ -n "$python" ] || stop "no ${PYTHON:-Python} was found; install Python 3.11 or later, then run the same command again."
    version=$("$python" --version 2>/dev/null) || stop "$python does not run; name a Python 3.11 or later that does, for example make book PYTHON=python3."
    new_enough "$python" || stop "$version is too old; install Python 3.11 or later (or name one: make book PYTHON=python3.12), then run the same command again."
    echo "pdelab: making .venv with $version"
    "$python" -m venv --clear .venv >/dev/null 2>&1 ||
        stop "$python cannot make a virtual environment; install its venv module (Debian, Ubuntu: apt install python3-venv), then run the same command again."
fi
echo "pdelab: installing the packages of requirements.lock (some minutes the first time)"
pip_install -r requirements.lock
pip_install --no-deps --no-build-isolation -e .
pwd -P > .venv/ready
echo "pdelab: set up"
