#!/bin/sh
# Writes the lock files run.txt, test.txt and nuitka.txt anew: every version pinned, every file by SHA-256.
# Needs uv (`pip install uv`).
set -eu
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
        --custom-compile-command requirements/lock.sh "$@"
}
compile pyproject.toml requirements/build.in --extra build --extra bundle --extra convert --output-file requirements/run.txt
compile pyproject.toml requirements/build.in --extra build --extra bundle --extra convert --extra test \
    --constraint requirements/run.txt --output-file requirements/test.txt
uv pip compile --quiet --python-version 3.13 --no-deps --generate-hashes --no-annotate --no-emit-index-url \
    --custom-compile-command requirements/lock.sh requirements/nuitka.in --output-file requirements/nuitka.txt
