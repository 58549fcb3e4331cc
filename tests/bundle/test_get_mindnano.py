"""The script that fetches the program: it must not install what is damaged or cannot run, and must say why not.

Machines are played by small programs in front of the real ones on PATH; the server and the program are real.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bundle.payload import Packed
from tests.bundle.support import NATIVE_TARGET, ROOT, tiny_packed
from tests.support.availability import unavailable
from tests.support.busybox import busybox

SCRIPT = ROOT / "scripts" / "get-mindnano.sh"
OTHER_TARGET = {"x86_64": "aarch64", "aarch64": "x86_64"}[NATIVE_TARGET]
NOWHERE = "http://127.0.0.1:9"  # a download from there ends with another code
TOOLS = ("cat", "chmod", "curl", "getconf", "grep", "head", "ldd", "mkdir", "mktemp", "mv", "od", "rm", "sed")
MORE_TOOLS = ("sha256sum", "tr", "uname", "wget")


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *_arguments: object) -> None:
        pass


class Release:
    """A folder that a local server shows, with the tiny program in it."""

    def __init__(self, folder: Path, packed: Packed) -> None:
        self.folder = folder
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.put(packed.path.read_bytes())

    def put(self, program: bytes, sums: str | None = None) -> None:
        (self.folder / "mindnano-infer").write_bytes(program)
        digest = hashlib.sha256(program).hexdigest()
        lines = (
            sums
            if sums is not None
            else f"{'0' * 64}  other\n{digest}  mindnano-infer\n{'1' * 64}  mindnano-infer.txt\n"
        )
        (self.folder / "SHA256SUMS").write_text(lines, encoding="utf-8")

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return tiny_packed(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def release(packed: Packed, tmp_path: Path) -> Iterator[Release]:
    (tmp_path / "release").mkdir()
    release = Release(tmp_path / "release", packed)
    yield release
    release.close()


def shell_command(name: str) -> list[str]:
    if name == "busybox":
        return [str(busybox()), "sh"]
    found = shutil.which(name)
    if found is None:
        unavailable(f"{name} is not installed")
    return [found, "--posix"] if name == "bash" else [found]


@pytest.fixture(params=["dash", "busybox", "bash"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return shell_command(str(request.param))


@pytest.fixture(params=["dash", "bash"])
def lean_shell(request: pytest.FixtureRequest) -> list[str]:
    """One without commands of its own: those of busybox come before PATH."""
    return shell_command(str(request.param))


def run(
    shell: list[str], machine: Path, *arguments: str, without: tuple[str, ...] = (), **programs: str
) -> subprocess.CompletedProcess[str]:
    """Runs the script with only the tools that it may use, some of them played by shell texts."""
    shutil.rmtree(machine / "bin", ignore_errors=True)
    (machine / "bin").mkdir()
    for name in (*TOOLS, *MORE_TOOLS):
        real = shutil.which(name)
        if name in programs:
            (machine / "bin" / name).write_text(f"#!/bin/sh\n{programs[name]}\n", encoding="utf-8")
            (machine / "bin" / name).chmod(0o755)
        elif real is not None and name not in without:
            (machine / "bin" / name).symlink_to(real)
    return subprocess.run(
        [*shell, str(SCRIPT), *arguments],
        env={"PATH": str(machine / "bin"), "LC_ALL": "C"},
        cwd=machine,
        capture_output=True,
        text=True,
    )


def refused(done: subprocess.CompletedProcess[str], code: int, text: str, machine: Path) -> None:
    assert done.returncode == code, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    assert text in last
    assert not (machine / "mindnano-infer").exists()
    assert [path.name for path in machine.iterdir() if path.name not in ("bin", "release")] == []


@pytest.mark.parametrize("without", [("wget",), ("curl",)])
def test_program_is_fetched_and_its_check_is_run(
    shell: list[str], release: Release, tmp_path: Path, without: tuple[str, ...]
) -> None:
    done = run(shell, tmp_path, release.url + "/", without=without)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("start ")
    assert "is whole and ready" in done.stderr
    program = tmp_path / "mindnano-infer"
    assert program.stat().st_mode & 0o777 == 0o755
    assert program.read_bytes() == (release.folder / "mindnano-infer").read_bytes()
    assert not list(tmp_path.glob(".get-mindnano.*"))


def test_other_folders_and_second_runs(shell: list[str], release: Release, tmp_path: Path) -> None:
    for folder in ("deep/er folder", str(tmp_path / "absolute"), "deep/er folder"):
        assert run(shell, tmp_path, release.url, folder).returncode == 0
        assert (tmp_path / folder / "mindnano-infer").is_file()


def test_exit_code_is_that_of_the_check(shell: list[str], release: Release, packed: Packed, tmp_path: Path) -> None:
    data = bytearray(packed.path.read_bytes())
    data[-300] ^= 1
    release.put(bytes(data))  # its sum fits, so only the program itself can tell
    done = run(shell, tmp_path, release.url)
    assert done.returncode == 4
    assert "program-damaged" in done.stderr


def test_damaged_and_unlisted_programs_are_not_installed(
    shell: list[str], release: Release, packed: Packed, tmp_path: Path
) -> None:
    data = packed.path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    wrong = hashlib.sha256(b"other").hexdigest()
    release.put(data, f"{wrong}  mindnano-infer\n")
    refused(run(shell, tmp_path, release.url), 8, f"but SHA256SUMS says {wrong}", tmp_path)
    for sums in (
        "",
        "<html>not found</html>\n",
        f"{digest}  other\n",
        f"{digest}  xmindnano-infer\n",
        f"{digest[:-1]}  mindnano-infer\n",
        f"{digest}  mindnano-infer\n{digest}  mindnano-infer\n",
    ):
        release.put(data, sums)
        refused(run(shell, tmp_path, release.url), 8, "does not name mindnano-infer exactly once", tmp_path)
    release.put(data, f"{digest} *mindnano-infer\n")
    assert run(shell, tmp_path, release.url).returncode == 0


def test_existing_program_survives_a_failed_download(shell: list[str], release: Release, tmp_path: Path) -> None:
    (tmp_path / "mindnano-infer").write_text("the old one", encoding="utf-8")
    release.put(b"damaged", f"{'0' * 64}  mindnano-infer\n")
    assert run(shell, tmp_path, release.url).returncode == 8
    assert (tmp_path / "mindnano-infer").read_text(encoding="utf-8") == "the old one"


def test_programs_for_other_processors_are_not_installed(shell: list[str], release: Release, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tiny_packed(tmp_path / "other", OTHER_TARGET, static=True).path.read_bytes()
    shutil.rmtree(tmp_path / "other")
    release.put(other)
    refused(run(shell, tmp_path, release.url), 3, f"not built for this processor ({NATIVE_TARGET})", tmp_path)


def test_failed_downloads_say_so(shell: list[str], release: Release, tmp_path: Path) -> None:
    (release.folder / "mindnano-infer").unlink()
    refused(run(shell, tmp_path, release.url), 6, "/mindnano-infer cannot be downloaded", tmp_path)
    (release.folder / "SHA256SUMS").unlink()
    refused(run(shell, tmp_path, release.url), 6, "/SHA256SUMS cannot be downloaded", tmp_path)


UNAMES = [
    ("case $1 in -s) echo Darwin ;; *) echo arm64 ;; esac", "this system is Darwin"),
    ("case $1 in -s) echo Linux ;; *) echo armv7l ;; esac", "this processor is armv7l"),
    ("case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac", "this processor is riscv64"),
    (f"case $1 in -s) echo Linux ;; *) echo {OTHER_TARGET} ;; esac", "this system has no /lib"),
]


def glibc(version: str, bits: int = 64) -> str:
    return f"case $1 in LONG_BIT) echo {bits} ;; *) echo glibc {version} ;; esac"


@pytest.mark.parametrize(("uname", "text"), UNAMES)
def test_other_systems_are_told_before_any_download(
    lean_shell: list[str], tmp_path: Path, uname: str, text: str
) -> None:
    refused(run(lean_shell, tmp_path, NOWHERE, uname=uname, getconf=glibc("2.31")), 3, text, tmp_path)


@pytest.mark.parametrize(
    ("programs", "text"),
    [
        ({"getconf": glibc("2.31", 32)}, "32-bit on a 64-bit processor"),
        ({"ldd": "echo 'musl libc (aarch64)' >&2; echo Version 1.2.4 >&2; exit 1", "getconf": "exit 1"}, "is musl"),
        ({"getconf": glibc("2.27")}, "glibc is 2.27; mindnano-infer needs 2.28"),
        ({"getconf": glibc("1.99")}, "glibc is 1.99"),
        ({"getconf": "exit 1", "ldd": "echo 'ldd (Ubuntu GLIBC 2.27-3ubuntu1.6) 2.27'"}, "glibc is 2.27"),
        ({"getconf": "exit 1", "ldd": "exit 1"}, "no glibc is found"),
    ],
)
def test_other_c_libraries_are_told_before_any_download(
    shell: list[str], tmp_path: Path, programs: dict[str, str], text: str
) -> None:
    refused(run(shell, tmp_path, NOWHERE, **programs), 3, text, tmp_path)


@pytest.mark.parametrize("version", ["2.28", "2.31", "2.100", "3.0", "2.36.9000"])
def test_new_glibc_versions_are_accepted(shell: list[str], release: Release, tmp_path: Path, version: str) -> None:
    assert run(shell, tmp_path, release.url, getconf=glibc(version)).returncode == 0


def test_missing_tools_are_named(lean_shell: list[str], tmp_path: Path) -> None:
    refused(run(lean_shell, tmp_path, NOWHERE, without=("curl", "wget")), 3, "neither curl nor wget", tmp_path)
    refused(run(lean_shell, tmp_path, NOWHERE, without=("sha256sum",)), 3, "sha256sum is not installed", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((), "expected: sh"), (("a", "b", "c"), "expected: sh"), (("ftp://x/y",), "no address"), (("-h",), "no address")],
)
def test_wrong_calls_are_explained(shell: list[str], tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    refused(run(shell, tmp_path, *arguments), 2, text, tmp_path)


@pytest.mark.parametrize(
    "host", ["example.com", "127.0.0.1.example.com", "localhost.example.com", "127.0.0.1:1@x.example"]
)
def test_no_program_comes_over_an_unprotected_line(shell: list[str], tmp_path: Path, host: str) -> None:
    refused(run(shell, tmp_path, f"http://{host}/release", curl="exit 1"), 2, "not protected", tmp_path)


def test_redirects_do_not_leave_the_protected_line(shell: list[str], tmp_path: Path) -> None:
    curl = 'printf "%s\\n" "$*"; exit 22'
    result = run(shell, tmp_path, "https://example.com/release", curl=curl)
    assert result.returncode == 6
    assert "--proto =https -o" in result.stdout


def test_folders_that_cannot_be_written_are_named(shell: list[str], release: Release, tmp_path: Path) -> None:
    (tmp_path / "release" / "file").write_text("x", encoding="utf-8")
    refused(run(shell, tmp_path, release.url, "release/file/below"), 5, "cannot be written to", tmp_path)
    refused(run(shell, tmp_path, release.url, "/proc"), 5, "cannot be written to", tmp_path)


def test_script_that_arrived_in_part_does_nothing(shell: list[str], tmp_path: Path) -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    for cut in range(200, len(text) - len('main "$@"\n'), 997):
        part = tmp_path / "part.sh"
        part.write_text(text[:cut], encoding="utf-8")
        subprocess.run(
            [*shell, str(part), "http://127.0.0.1:9"], cwd=tmp_path, capture_output=True, env=dict(os.environ)
        )
        assert [path.name for path in tmp_path.iterdir()] == ["part.sh"]
