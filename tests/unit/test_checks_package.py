"""A package that cannot be used and is called good, a wrong exit code for it, bytes trusted that nobody compared."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from launcher.checks.package import PackageView, package_view
from launcher.checks.report import Finding, Status
from launcher.engine_library import Library
from launcher.integrity.claims import SignatureState
from launcher.integrity.stamps import Stamp, StampCache
from launcher.messages import Catalogue, Language
from launcher.options.parse import parse
from launcher.system import SystemView
from tests.support.demo import require_demo

ENGLISH = Catalogue(Language.ENGLISH)


@pytest.fixture(scope="module")
def engine() -> Library:
    require_demo()
    return Library()


def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def look(tmp_path: Path, engine: Library | None, *words: str, command: str = "--check") -> PackageView:
    options = parse([command, *words], environment(tmp_path), [])
    return package_view(options, environment(tmp_path), SystemView(), engine)


def statuses(view: PackageView) -> list[tuple[str, str]]:
    return [(line.slug, line.status.value) for line in view.findings]


def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    folder.mkdir()
    return Path(shutil.copy(require_demo(), folder / "demo.l3r"))


def list_it(package: Path, digest: str | None = None) -> None:
    named = digest or hashlib.sha256(package.read_bytes()).hexdigest()
    (package.parent / "SHA256SUMS").write_text(f"{named}  {package.name}\n")


def settle(package: Path) -> None:
    """Makes the file old enough for a stamp."""
    then = package.stat().st_mtime - 3600
    os.utime(package, (then, then))


def failure(view: PackageView) -> Finding:
    (found,) = [line for line in view.findings if line.status is Status.FAIL]
    return found


def test_built_in_model_is_described(tmp_path: Path, engine: Library) -> None:
    view = look(tmp_path, engine, "--demo")
    line = view.findings[0]
    assert (line.slug, line.status) == ("package-mtp", Status.OK)
    assert (line.facts["layers"], line.facts["experts"], line.facts["context"]) == (8, 16, "8K")
    assert "l3r 1" in line.text(ENGLISH)
    assert line.facts["size_bytes"] == require_demo().stat().st_size
    assert view.need is not None
    assert (view.need.context, view.need.largest) == (4096, 8192)
    assert view.need.weights


def test_need_follows_the_options(tmp_path: Path, engine: Library) -> None:
    small = look(tmp_path, engine, "--demo", "--context", "1K").need
    large = look(tmp_path, engine, "--demo", "--context", "8K").need
    exact = look(tmp_path, engine, "--demo", "--context", "8K", "--kv-cache", "f32").need
    assert small is not None
    assert large is not None
    assert exact is not None
    assert small.bytes < large.bytes < exact.bytes


def test_no_package_is_no_failure_and_says_where_it_was_looked_for(tmp_path: Path, engine: Library) -> None:
    view = look(tmp_path, engine)
    assert statuses(view) == [("package-none", "skip")]
    assert "home/.local/share/mindnano/models" in view.findings[0].text(ENGLISH)
    assert (view.path, view.need) == (None, None)


def test_package_in_the_model_folder_is_found(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    view = look(tmp_path, engine, "--model-dir", str(package.parent))
    assert (view.path, view.findings[0].status) == (package, Status.OK)


def test_package_is_not_opened_without_the_engine(tmp_path: Path) -> None:
    view = look(tmp_path, None, "--model", "/any.l3r")
    assert statuses(view) == [("package-unread", "skip")]


@pytest.mark.parametrize(
    ("damage", "slug"),
    [
        ("missing", "package-missing"),
        ("empty", "package-damaged"),
        ("text", "package-damaged"),
        ("cut", "package-damaged"),
        ("folder", "package-unreadable"),
        ("magic", "package-damaged"),
    ],
)
def test_damaged_package_is_exit_4(tmp_path: Path, engine: Library, damage: str, slug: str) -> None:
    package = copy(tmp_path)
    data = package.read_bytes()
    package.unlink()
    if damage == "folder":
        package.mkdir()
    elif damage != "missing":
        contents = {"empty": b"", "text": b"<html>404</html>\n" * 900, "cut": data[:100_000], "magic": b"X" + data[1:]}
        package.write_bytes(contents[damage])
    view = look(tmp_path, engine, "--model", str(package))
    found = failure(view)
    assert (found.exit_code, found.blocking) == (4, True)
    assert found.facts["error"] in {slug, "package-unreadable"}
    assert found.text(ENGLISH)
    assert view.need is None
    assert str(package) not in found.redacted().text(ENGLISH)


def test_context_that_the_package_does_not_allow_is_the_callers_error(tmp_path: Path, engine: Library) -> None:
    assert failure(look(tmp_path, engine, "--demo", "--context", "64K")).exit_code == 2


@pytest.mark.parametrize("command", ["--check", "--check=deep"])
def test_model_inside_the_program_is_opened_where_it_lies(
    tmp_path: Path, engine: Library, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    data = require_demo().read_bytes()
    program = tmp_path / "mindnano-infer"
    program.write_bytes(b"\x7fELF" + bytes(65532) + data + b"end")
    list_it(program, "0" * 64)  # about another file than the package
    monkeypatch.setattr("launcher.checks.package.demo_package", lambda: (str(program), (65536, len(data))))
    view = look(tmp_path, engine, "--demo", command=command)
    assert view.findings[0].facts["size_bytes"] == len(data)
    assert statuses(view)[-1] == ("package-carried", "ok")
    assert view.path == program
    assert view.need is not None


def test_several_packages_and_none_named(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    shutil.copy(package, package.with_name("other.l3r"))
    assert failure(look(tmp_path, engine, "--model-dir", str(package.parent))).exit_code == 2


def test_package_beside_a_manifest_is_unverified_until_it_was_hashed(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    list_it(package)
    settle(package)
    shallow = look(tmp_path, engine, "--model", str(package))
    assert statuses(shallow)[1] == ("package-unverified", "skip")
    assert not (tmp_path / "cache").exists()


def test_deep_check_hashes_sections_and_file(
    tmp_path: Path, engine: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    package = copy(tmp_path)
    assert statuses(look(tmp_path, engine, "--model", str(package), command="--check=deep"))[1:] == [
        ("package-hashed", "ok"),
        ("package-no-manifest", "skip"),
    ]
    list_it(package)
    found = look(tmp_path, engine, "--model", str(package), command="--check=deep")
    assert statuses(found)[1:] == [
        ("package-hashed", "ok"),
        ("package-verified", "ok"),
        ("package-unsigned", "warn"),
    ]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "demo.l3r" in shown.err


def test_changed_weights_fail_the_deep_check_only(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    with package.open("r+b") as file:
        file.seek(-100_000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert all(line.status is not Status.FAIL for line in look(tmp_path, engine, "--model", str(package)).findings)
    assert failure(look(tmp_path, engine, "--model", str(package), command="--check=deep")).exit_code == 4


def test_manifest_that_disagrees_fails_with_both_digests(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    actual = hashlib.sha256(package.read_bytes()).hexdigest()
    list_it(package, "0" * 64)
    found = failure(look(tmp_path, engine, "--model", str(package), command="--check=deep"))
    assert found.exit_code == 4
    assert actual in found.text(ENGLISH)
    assert "0" * 64 in found.text(ENGLISH)


def test_known_disagreement_fails_without_hashing(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    list_it(package, "0" * 64)
    status = package.stat()
    stamp = Stamp(
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        sha256="1" * 64,
    )
    assert StampCache.of(environment(tmp_path)).record([(package, stamp)])
    found = failure(look(tmp_path, engine, "--model", str(package)))
    assert found.exit_code == 4
    assert "1" * 64 in found.text(ENGLISH)
    list_it(package, "1" * 64)
    assert statuses(look(tmp_path, engine, "--model", str(package)))[1] == ("package-verified", "ok")


def test_malformed_manifest_is_no_crash(tmp_path: Path, engine: Library) -> None:
    package = copy(tmp_path)
    (package.parent / "SHA256SUMS").write_bytes(b"\xff\x00 nonsense\n" * 10)
    (package.parent / "MANIFEST.json").write_bytes(b'{"schema": [[[[')
    view = look(tmp_path, engine, "--model", str(package))
    assert view.findings[0].status is Status.OK
    assert failure(view).exit_code in {4, 8}


def test_context_beyond_the_package_leaves_the_line_about_the_package(tmp_path: Path, engine: Library) -> None:
    view = look(tmp_path, engine, "--demo", "--context", "256K")
    assert [slug for slug, _ in statuses(view)] == ["package-mtp", "package-unusable"]
    assert view.findings[1].exit_code == 2
    assert "8192" in view.findings[1].next_step(ENGLISH)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (SignatureState.VALID, ("package-signed", "ok")),
        (SignatureState.NONE, ("package-unsigned", "warn")),
        (SignatureState.NO_KEY, ("package-signature-unchecked", "warn")),
    ],
)
def test_signature_of_the_release_has_its_line(
    tmp_path: Path,
    engine: Library,
    monkeypatch: pytest.MonkeyPatch,
    state: SignatureState,
    expected: tuple[str, str],
) -> None:
    package = copy(tmp_path)
    list_it(package)
    monkeypatch.setattr("launcher.checks.package.signature_state", lambda path: state)
    assert statuses(look(tmp_path, engine, "--model", str(package)))[2:] == [expected]
