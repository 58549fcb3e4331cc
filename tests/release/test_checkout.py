"""A release that names a commit or a time of something else than its own source."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from bundle.program_sources import source_digest
from launcher.errors import MindnanoError
from release.folder.checkout import Checkout, read_checkout
from tests.support.demo import require_demo
from tests.support.release_folders import CHECKOUT, SOURCES, look, make_release, stand_in_program

NOTHING = hashlib.sha256(b"").hexdigest()
"""Digest of the source in a folder that has none of its files."""


def git(folder: Path, *words: str) -> str:
    environ = {**os.environ, "GIT_COMMITTER_DATE": "@1700000000 +0000", "GIT_AUTHOR_DATE": "@1600000000 +0000"}
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_counts_only_where_nothing_differs_from_it(tmp_path: Path) -> None:
    assert read_checkout({}, tmp_path) == Checkout(commit=None, epoch=None, sources=NOTHING)
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("1")
    assert read_checkout({}, tmp_path) == Checkout(commit=head, epoch=1_700_000_000, sources=NOTHING)
    assert read_checkout({"SOURCE_DATE_EPOCH": "5"}, tmp_path) == Checkout(commit=head, epoch=5, sources=NOTHING)
    (tmp_path / "file").write_text("2")
    assert read_checkout({}, tmp_path) == Checkout(commit=None, epoch=1_700_000_000, sources=NOTHING)
    with pytest.raises(MindnanoError, match="soon"):
        read_checkout({"SOURCE_DATE_EPOCH": "soon"}, tmp_path)


def test_the_commit_is_that_of_this_source(tmp_path: Path) -> None:
    """Neither that of a repository around a copy of the source, nor of one that Git's variables name, as in a hook."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / "file").write_text(folder.name)
        git(folder, "add", "file")
        git(folder, "commit", "-q", "-m", folder.name)
    copied = other / "copy"
    copied.mkdir()
    assert read_checkout({}, copied) == Checkout(commit=None, epoch=None, sources=NOTHING)
    hook = {**os.environ, "GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}
    assert read_checkout(hook, own).commit == git(own, "rev-parse", "HEAD")
    link = tmp_path / "link"
    link.symlink_to(own)
    assert read_checkout({}, link).commit == git(own, "rev-parse", "HEAD")


def test_the_digest_is_that_of_what_lies_there(tmp_path: Path) -> None:
    """And a file that a build would take, but Git does not know, is in no commit, whether Git ignores it or not."""
    git(tmp_path, "init", "-q")
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "cli.py").write_text("1")
    (tmp_path / ".gitignore").write_text("secret.py\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = read_checkout({}, tmp_path)
    assert (clean.commit, clean.sources) == (git(tmp_path, "rev-parse", "HEAD"), source_digest(tmp_path))
    (tmp_path / "launcher" / "cli.pyc").write_text("1")
    assert read_checkout({}, tmp_path) == clean
    for name in ("secret.py", "new.py"):
        (tmp_path / "launcher" / name).write_text("1")
        more = read_checkout({}, tmp_path)
        assert more.commit is None
        assert more.sources != clean.sources
        (tmp_path / "launcher" / name).unlink()
    (tmp_path / "launcher" / "cli.py").write_text("2")
    assert read_checkout({}, tmp_path).sources == source_digest(tmp_path) != clean.sources


def test_settings_of_git_do_not_matter(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    for name, value in (("log.showSignature", "true"), ("status.branch", "true"), ("status.showStash", "true")):
        git(tmp_path, "config", name, value)
    expected = Checkout(commit=git(tmp_path, "rev-parse", "HEAD"), epoch=1_700_000_000, sources=NOTHING)
    assert read_checkout({"LANG": "de_DE.UTF-8"}, tmp_path) == expected


@pytest.mark.parametrize("given", ["253402300800", "999999999999", "-1", "1e9", "٣"])
def test_a_time_that_no_format_has_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(MindnanoError) as caught:
        read_checkout({"SOURCE_DATE_EPOCH": given}, tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("commit", "said"), [(None, "of no commit"), (CHECKOUT.commit, f"of commit {CHECKOUT.commit}")]
)
def test_a_release_of_no_commit_looks_like_any_other(commit: str | None, said: str, tmp_path: Path) -> None:
    """Whoever makes one out of a checkout with changes, or with files that Git does not know, must see it."""
    checkout = Checkout(commit=commit, epoch=CHECKOUT.epoch, sources=SOURCES)
    folder = make_release(tmp_path / "out", stand_in_program(tmp_path / "in"), require_demo(), checkout=checkout)
    assert said in look(folder).to_text()
