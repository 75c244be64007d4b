#!/bin/sh
# pyproject.toml (every extra) -> requirements.lock: exact versions for Linux and macOS, Python 3.11 and later.
#   sh tools/make_lock.sh
set -eu
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install -q uv

# hatchling is what installs pdelab itself; torch is pinned to the release the recorded results were made with.
printf 'hatchling\ntorch==2.13.0\n' > "$tool/pins.in"
"$tool/venv/bin/uv" pip compile -q --universal --python-version 3.11 --all-extras --no-annotate --no-header \
    --no-emit-index-url pyproject.toml "$tool/pins.in" -o "$tool/lock"

# torch brings its own CUDA packages where it needs them; naming them here would install gigabytes beside a CPU build.
{
    echo "# Exact versions, written by tools/make_lock.sh from pyproject.toml; do not edit."
    grep -Ev '^(nvidia-|cuda-|triton)' "$tool/lock" | sed 's/^torch==2\.13\.0+cpu/torch==2.13.0/'
} > requirements.lock
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
