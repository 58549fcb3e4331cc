"""A release that is published unverified, in several commits, over someone else's, or with a token in what is said.

The client is the real `huggingface_hub`; the hub is a fake on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import jsonschema
import pytest
from huggingface_hub.utils import _http

from launcher.errors import MindnanoError, NetworkError, PackageError, UsageError
from launcher.integrity.checksums import format_checksums
from release import cli
from release.upload import publish as module
from release.upload.plan import Commit
from release.upload.publish import PublishOptions, publish
from tests.support.demo import ROOT
from tests.support.fake_hub import TOKEN, FakeHub, Stored
from tests.support.releases import sha256

REPO = "org/tiny"
SCHEMA = json.loads((ROOT / "release" / "folder" / "schemas" / "publish.json").read_text(encoding="utf-8"))
WEIGHTS = bytes(range(256)) * 1000
FILES = {
    "README.md": b"---\nlicense: mit\n---\n# A model\n",
    "MANIFEST.json": b'{"model": "tiny", "release": "1.2.3"}\n',
    "model.l3r": WEIGHTS,
    "NOTICE": "für alle\n".encode(),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(_http.time, "sleep", lambda _seconds: None)
        monkeypatch.setattr(module, "require_verified", lambda _folder: None)
        yield fake


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "private").write_bytes(b"not listed")
    (folder / "SHA256SUMS").write_bytes(b"not public either")
    _list(folder)
    return folder


def _list(folder: Path) -> None:
    digests = {name: sha256((folder / name).read_bytes()) for name in FILES}
    (folder / "SHA256SUMS.PUBLIC").write_bytes(format_checksums(digests))


def _options(folder: Path, **changes: Any) -> PublishOptions:
    return replace(PublishOptions(folder=folder, repository=REPO), **changes)


def _names(commit: Commit) -> dict[str, list[str]]:
    groups = {"added": commit.added, "changed": commit.changed, "unchanged": commit.unchanged}
    return {name: [file.path for file in files] for name, files in groups.items()}


def test_without_yes_everything_is_shown_and_nothing_is_changed(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    first = repository.head
    repository.add("old", {**repository.files, "NOTICE": Stored(b"old", False), "old.bin": Stored(b"x", True)})
    repository.files["model.l3r"] = Stored(WEIGHTS, True)
    commit = publish(_options(release))
    assert _names(commit) == {
        "added": ["MANIFEST.json", "README.md", "SHA256SUMS.PUBLIC"],
        "changed": ["NOTICE"],
        "unchanged": ["model.l3r"],
    }
    assert (commit.left, commit.deleted, commit.made) == (("old.bin",), (), None)
    assert commit.parent == repository.head != first
    assert commit.message == "Release tiny 1.2.3"
    text = commit.to_text()
    row = next(line for line in text.splitlines() if line.endswith("model.l3r"))
    assert row.split() == ["keep", "250", "KiB", "lfs", sha256(WEIGHTS), "model.l3r"]
    assert next(line for line in text.splitlines() if line.endswith("NOTICE")).split()[3] == "regular"
    assert f"--yes --parent {commit.parent}" in text
    document = json.loads(commit.to_json())
    jsonschema.validate(document, SCHEMA)
    assert (document["schema"], document["version"], document["dry_run"]) == ("mindnano.publish", 1, True)
    assert len(repository.commits) == 2
    assert not [request for request in hub.requests if not request.startswith("GET ")]


def test_yes_makes_one_commit_of_the_public_files(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    parent = repository.head
    commit = publish(_options(release, confirmed=True, parent=parent))
    name, message, before, files = repository.commits[-1]
    assert (len(repository.commits), name, message, before) == (2, commit.made, "Release tiny 1.2.3", parent)
    wanted = {**FILES, "SHA256SUMS.PUBLIC": (release / "SHA256SUMS.PUBLIC").read_bytes()}
    assert {path: stored.data for path, stored in files.items() if path != ".gitattributes"} == wanted
    assert files["model.l3r"].large
    assert not files["README.md"].large
    assert sum(request.startswith("PUT /part/") for request in hub.requests) == 3
    again = publish(_options(release, confirmed=True))
    assert again.is_empty
    assert "holds this release" in again.to_text()
    assert len(repository.commits) == 2


def test_files_of_somebody_else_are_neither_deleted_nor_left_unasked(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    repository.add("old", {**repository.files, "old.bin": Stored(b"x", True), "b.l3r": Stored(b"x", True)})
    shown = publish(_options(release))
    assert (shown.left, shown.deleted) == (("b.l3r", "old.bin"), ())
    assert "with the 2 left, a download of the repository does not pass mindnano verify" in shown.to_text()
    with pytest.raises(UsageError, match=r"2 files that are not of a release \(b\.l3r, old\.bin\)") as caught:
        publish(_options(release, confirmed=True))
    assert (caught.value.slug, len(repository.commits)) == ("publish-foreign", 2)
    publish(_options(release, confirmed=True, leave=True))
    assert {"old.bin", "b.l3r"} <= repository.files.keys()
    commit = publish(_options(release, confirmed=True, delete=True))
    assert commit.deleted == ("b.l3r", "old.bin")
    assert sorted(repository.files) == sorted([".gitattributes", *FILES, "SHA256SUMS.PUBLIC"])
    assert len(repository.commits) == 4


@pytest.mark.parametrize(
    "name",
    [
        *("SHA256SUMS", "SHA256SUMS.minisig", "SHA256SUMS.PUBLIC.minisig", "SHA256SUMS.PUBLIC.sigstore.json"),
        *("mindnano-infer", "LICENSE-BASE-MODEL", "NOTICES.txt", "notices/zlib.txt", "notices/index.json"),
    ],
)
def test_what_an_earlier_release_left_goes_in_the_same_commit(hub: FakeHub, release: Path, name: str) -> None:
    repository = hub.make(REPO)
    repository.add("old", {**repository.files, name: Stored(b"x", False)})
    shown = publish(_options(release))
    assert (shown.deleted, shown.left) == ((name,), ())
    assert f"delete  {name}" in shown.to_text().splitlines()
    publish(_options(release, confirmed=True))
    assert name not in repository.files
    assert len(repository.commits) == 3


@pytest.mark.parametrize("words", [["--yes"], ["--private"], ["--parent", "main"]])
def test_an_error_is_a_json_document_too(
    hub: FakeHub, release: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code = cli.main(["publish", str(release), "--repo", REPO, "--json", *words])
    streams = capsys.readouterr()
    document = json.loads(streams.out)
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == code != 0
    assert document["error"]["slug"] in streams.err
    hub.make(REPO)
    assert cli.main(["publish", str(release), "--repo", REPO, "--json", "--yes"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_a_missing_repository_is_made_only_when_asked(hub: FakeHub, release: Path) -> None:
    with pytest.raises(NetworkError, match="is not at") as caught:
        publish(_options(release, confirmed=True))
    assert "--create" in caught.value.hint
    shown = publish(_options(release, create=True))
    assert (shown.parent, REPO in hub.repositories) == (None, False)
    made = publish(_options(release, create=True, confirmed=True))
    assert hub.repositories[REPO].head == made.made


def test_a_branch_that_moved_is_refused(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    seen = repository.head

    def other(request: str) -> None:
        if "/commit/" in request:
            repository.add("someone else", dict(repository.files))

    hub.fault = other
    with pytest.raises(NetworkError, match="moved on") as caught:
        publish(_options(release, confirmed=True))
    assert (caught.value.slug, caught.value.exit_code) == ("publish-moved", 6)
    assert [commit[1] for commit in repository.commits] == ["initial commit", "someone else"]
    with pytest.raises(NetworkError, match=f"expected {seen}"):
        publish(_options(release, parent=seen))


@pytest.mark.parametrize(
    ("where", "fault", "slug"),
    [
        ("GET /api/models", 401, "publish-refused"),
        ("GET /api/models", 403, "publish-refused"),
        ("GET /api/models", 503, "publish-failed"),
        ("GET /api/models", "cut", "publish-unreachable"),
        ("/preupload/", 403, "publish-refused"),
        ("/preupload/", 500, "publish-failed"),
        ("/objects/batch", 401, "publish-refused"),
        ("/objects/batch", 502, "publish-failed"),
        ("PUT /part/", 503, "publish-failed"),
        ("PUT /part/", "cut", "publish-unreachable"),
        ("/complete/", 500, "publish-failed"),
        ("/commit/", 403, "publish-refused"),
        ("/commit/", 409, "publish-moved"),
        ("/commit/", 412, "publish-moved"),
        ("/commit/", 500, "publish-failed"),
        ("/commit/", "cut", "publish-unreachable"),
    ],
)
def test_a_fault_of_the_hub_is_told_and_commits_nothing(
    hub: FakeHub, release: Path, where: str, fault: int | str, slug: str
) -> None:
    repository = hub.make(REPO)
    hub.fault = lambda request: fault if where in request else None
    with pytest.raises(NetworkError) as caught:
        publish(_options(release, confirmed=True))
    assert (caught.value.slug, caught.value.exit_code) == (slug, 6)
    assert caught.value.hint
    assert TOKEN not in caught.value.message + caught.value.hint
    assert len(repository.commits) == 1


def test_a_connection_that_breaks_once_is_tried_again(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    faults = ["cut"]
    hub.fault = lambda request: faults.pop() if "PUT /part/" in request and faults else None
    publish(_options(release, confirmed=True))
    assert repository.files["model.l3r"].data == WEIGHTS


def test_a_token_that_is_not_valid_is_told(
    hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert cli.main(["publish", str(release), "--repo", REPO]) == 6
    said = capsys.readouterr()
    assert "does not know this login" in said.err
    assert "hf_wrong" not in said.err + said.out


def test_nobody_is_logged_in(hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    hub.make(REPO)
    assert publish(_options(release)).dry_run
    with pytest.raises(UsageError, match="HF_TOKEN"):
        publish(_options(release, confirmed=True))


def test_no_hub_at_all(release: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NetworkError) as caught:
        publish(_options(release))
    assert "HF_ENDPOINT" in caught.value.hint


def test_a_file_that_changes_after_the_look_is_refused(
    hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.make(REPO)
    real = module._plan

    def plan(*arguments: Any) -> Commit:
        commit = real(*arguments)
        (release / "model.l3r").write_bytes(WEIGHTS[:-1] + b"x")
        return commit

    monkeypatch.setattr(module, "_plan", plan)
    with pytest.raises(PackageError, match="changed after"):
        publish(_options(release, confirmed=True))
    assert len(repository.commits) == 1


def test_a_card_that_the_hub_refuses_is_told(hub: FakeHub, release: Path) -> None:
    hub.make(REPO)
    (release / "README.md").write_bytes(b"---\nlicense: nonsense\n---\n")
    _list(release)
    with pytest.raises(PackageError, match='"license" is not one'):
        publish(_options(release, confirmed=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"repository": "tiny"},
        {"repository": "a/b/c"},
        {"repository": "../x"},
        {"parent": "main"},
        {"branch": ""},
        {"branch": "a b"},
        {"branch": "-x"},
        {"delete": True, "leave": True},
    ],
)
def test_malformed_names_are_refused(release: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        publish(_options(release, **changes))


def test_an_unverified_release_is_not_published(hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with pytest.raises(MindnanoError) as caught:
        publish(_options(release))
    assert caught.value.exit_code == 4
    assert hub.requests == []


def test_a_folder_without_a_list_is_refused(hub: FakeHub, release: Path, tmp_path: Path) -> None:
    shutil.copytree(release, tmp_path / "other")
    (tmp_path / "other" / "SHA256SUMS.PUBLIC").unlink()
    with pytest.raises(PackageError, match=r"no SHA256SUMS\.PUBLIC"):
        publish(_options(tmp_path / "other"))


def test_a_process_of_its_own_publishes(hub: FakeHub, release: Path) -> None:
    """Where nothing else has imported the library before."""
    repository = hub.make(REPO)
    script = (
        "import sys\nfrom release import cli\nfrom release.upload import publish\n"
        "publish.require_verified = lambda folder: None\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, "publish", str(release), "--repo", REPO, "--yes"]
    environ = {**os.environ, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"committed as {repository.head}"
    assert "\r" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_private_without_create_is_refused(hub: FakeHub, release: Path) -> None:
    """A public repository would stay public, and whoever said private would not know."""
    hub.make(REPO)
    with pytest.raises(UsageError, match="--private needs --create"):
        publish(_options(release, private=True, confirmed=True))
    assert hub.requests == []


@pytest.mark.parametrize("token", ["hf_secret\x01secret", "hf_secret secret", "hf_sécret", "hf_secret\nX-Evil: 1"])
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_token_that_cannot_be_sent_is_not_shown(
    hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch, token: str, confirmed: bool
) -> None:
    hub.make(REPO)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UsageError) as caught:
        publish(_options(release, confirmed=confirmed))
    assert caught.value.slug == "token-invalid"
    assert "cret" not in repr((caught.value.message, caught.value.hint)).replace("secret key", "")
    assert hub.requests == []


@pytest.mark.parametrize("endpoint", ["https://me:hf_secret@hub.example", "hf_secret", "https://hub\x1b[2J"])
def test_an_endpoint_with_a_login_is_refused_and_not_shown(
    release: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UsageError) as caught:
        publish(_options(release))
    assert caught.value.slug == "endpoint-invalid"
    assert "secret" not in caught.value.message + caught.value.hint
    assert "\x1b" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("found", [None, "main", "A" * 40, 5])
def test_a_hub_that_names_no_commit_is_not_believed(
    hub: FakeHub, release: Path, monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    repository = hub.make(REPO)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *_words, **_options: SimpleNamespace(sha=found))
    with pytest.raises(NetworkError) as caught:
        publish(_options(release, confirmed=True))
    assert (caught.value.slug, caught.value.exit_code) == ("publish-answer", 6)
    assert len(repository.commits) == 1


def test_names_out_of_the_hub_do_not_move_the_cursor(hub: FakeHub, release: Path) -> None:
    repository = hub.make(REPO)
    repository.add("old", {**repository.files, "x\x1b[2J": Stored(b"x", True)})
    for delete in (False, True):
        shown = publish(_options(release, delete=delete)).to_text()
        assert "x\\x1b[2J" in shown
        assert "\x1b" not in shown
