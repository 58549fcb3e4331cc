"""Half a release under the name of a whole one, another folder that is lost, a signature that others do not accept."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import MindnanoError, PackageError, ResourceError, TrustError, UsageError
from launcher.integrity.signature import KeyUse, parse_public_key, parse_signature, verify_signature
from release import cli
from release.folder import finalize
from release.folder.signing import read_secret_key, sign
from tests.support.demo import require_demo
from tests.support.minisign_keys import LOCKED, LOCKED_PUBLIC, PLAIN, PLAIN_PUBLIC
from tests.support.release_folders import faults, files_of, look, make_release, publisher_json, stand_in_program
from tests.support.verification import SIGNER, flip

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "release.key"
    path.write_text(PLAIN)
    return path


def no_password() -> str:
    raise AssertionError("nothing protects this key")


@pytest.mark.parametrize("limit", [8, 1000, 300_000, 4_000_000])
def test_a_full_disk_leaves_nothing(program: Path, tmp_path: Path, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(ResourceError) as caught:
            make_release(tmp_path / "out", program, require_demo())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 5
    assert "out" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1 << 20))
    with pytest.raises(ResourceError) as caught:
        make_release(tmp_path / "out", program, require_demo())
    assert caught.value.slug == "disk-space"
    assert list(tmp_path.iterdir()) == []


KILLED = """
import signal, sys
from pathlib import Path
from release.folder import finalize
from release.folder.checkout import Checkout
def stop(*_arguments, **_options):
    print("here", flush=True)
    signal.pause()
if sys.argv[4] == "copying":
    original = finalize.texts_of
    finalize.texts_of = stop
else:
    finalize.verify = stop
program, package, output = map(Path, sys.argv[1:4])
finalize.finalize(finalize.FinalizeOptions(program=program, package=package, output=output, version="1.2.3",
    checkout=Checkout(commit="c" * 40, epoch=1_790_000_000, sources="5" * 64)))
"""


@pytest.mark.parametrize("moment", ["copying", "checking"])
def test_a_killed_run_has_no_result_and_the_next_one_succeeds(program: Path, tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(program), str(require_demo()), str(out), moment]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        with pytest.raises(UsageError) as caught:
            make_release(out, program, require_demo())
        assert caught.value.slug == "output-busy"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not out.exists()
    partial = tmp_path / "out.partial"
    assert (partial / "mindnano-infer").is_file(), "it was killed too early to show anything"
    (partial / "stray.l3r").write_text("from an earlier run")
    make_release(out, program, require_demo())
    assert not partial.exists()
    assert look(out).exit_code == 0


def test_an_interrupted_run_leaves_nothing(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_facts: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(finalize, "texts_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_release(tmp_path / "out", program, require_demo())
    assert list(tmp_path.iterdir()) == []


STOPPED = """
import sys, time
from release import cli
from release.folder import checkout, finalize
# The source that the stand-in was built from is none.
checkout.read_checkout = lambda _environ: checkout.Checkout(commit=None, epoch=1_790_000_000, sources="5" * 64)
def stop(*_arguments, **_options):
    print("here", flush=True)
    while True:  # a signal just before a system call is seen after it
        time.sleep(0.01)
finalize.texts_of = stop
program, package, output = sys.argv[1:]
words = ["finalize", "--program", program, "--package", package, "--version", "1.2.3", "--output", output]
sys.exit(cli.main(words))
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
)
def test_a_signal_leaves_half_a_release(
    program: Path, tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", STOPPED, str(program), str(require_demo()), str(out)]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1790000000"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "here\n"
        child.send_signal(number)
        error = child.stderr.read()
        assert child.wait() == code
    assert error.splitlines()[-1] == f"mindnano: {said}"
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_replaced(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "MANIFEST.json").write_text("precious")
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            make_release(out, program, require_demo())
        assert (caught.value.slug, caught.value.exit_code) == ("output-exists", 2)
        assert "--force" not in str(caught.value.hint)  # finalize has no such option
    assert files_of(tmp_path) == {"out/MANIFEST.json": b"precious"}
    original = finalize.verify

    def late(options: finalize.VerifyOptions) -> object:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").write_text("precious")
        return original(options)

    monkeypatch.setattr(finalize, "verify", late)
    with pytest.raises(UsageError) as caught:
        make_release(tmp_path / "new", program, require_demo())
    assert caught.value.slug == "output-exists"
    assert files_of(tmp_path) == {"out/MANIFEST.json": b"precious", "new/file": b"precious"}


def test_a_release_that_fails_its_own_check_gets_no_name(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk, or a bug, changes a byte between writing and reading back."""
    original = finalize.verify

    def damaged(options: finalize.VerifyOptions) -> object:
        flip(options.folder / "mindnano-demo.l3r", 5_000_000)
        return original(options)

    monkeypatch.setattr(finalize, "verify", damaged)
    with pytest.raises(MindnanoError) as caught:
        make_release(tmp_path / "out", program, require_demo())
    assert (caught.value.slug, caught.value.exit_code) == ("release-unsound", 1)
    assert "changed: mindnano-demo.l3r" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_signatures_are_those_of_minisign(program: Path, tmp_path: Path, key: Path) -> None:
    secret = read_secret_key(key, no_password)
    folder = make_release(tmp_path / "out", program, require_demo(), key=secret)
    public = parse_public_key(PLAIN_PUBLIC, KeyUse.RELEASE)
    assert secret.public() == public
    for name in ("SHA256SUMS", "SHA256SUMS.PUBLIC"):
        packet = parse_signature((folder / f"{name}.minisig").read_bytes(), where=name)
        signed = verify_signature((folder / name).read_bytes(), packet, [public], where=name)
        assert signed.comment == "mindnano-demo 1.2.3"
    assert faults(look(folder, keys=(public,))) == {}
    flip(folder / "SHA256SUMS", 3)
    with pytest.raises(TrustError) as caught:
        look(folder, keys=(public,))
    assert (caught.value.slug, caught.value.exit_code) == ("signature-invalid", 8)


def test_the_secret_key_is_in_no_file_and_no_text(program: Path, tmp_path: Path, key: Path) -> None:
    secret = read_secret_key(key, no_password)
    folder = make_release(tmp_path / "out", program, require_demo(), key=secret)
    assert all(secret.seed not in data for data in files_of(folder).values())
    assert secret.seed.hex() not in repr(secret)
    assert repr(secret) == "SecretKey(C2BDEB7D7E1687E8)"


def test_verify_wants_the_publishers_signature(
    program: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_release(tmp_path / "out", program, require_demo(), key=read_secret_key(key, no_password))
    right, other, none = tmp_path / "right.pub", tmp_path / "other.pub", tmp_path / "none.pub"
    right.write_text(f"untrusted comment: x\n{PLAIN_PUBLIC}\n")
    other.write_text(f"untrusted comment: x\n{LOCKED_PUBLIC}\n")
    assert cli.main(["verify", str(folder), "--public-key", str(right), "--public-key", str(other)]) == 0
    assert "by key C2BDEB7D7E1687E8: mindnano-demo 1.2.3" in capsys.readouterr().out
    assert cli.main(["verify", str(folder), "--public-key", str(other)]) == 8
    assert cli.main(["verify", str(folder), "--public-key", str(none)]) == 8
    (folder / "SHA256SUMS").unlink()
    assert cli.main(["verify", str(folder), "--public-key", str(right)]) == 4


def test_a_key_that_the_program_does_not_trust_is_refused(tmp_path: Path, key: Path) -> None:
    program = stand_in_program(tmp_path / "program", publisher=publisher_json(SIGNER))
    with pytest.raises(TrustError) as caught:
        make_release(tmp_path / "out", program, require_demo(), key=read_secret_key(key, no_password))
    assert (caught.value.slug, caught.value.exit_code) == ("signature-key-unknown", 8)
    assert not (tmp_path / "out").exists()
    assert faults(look(make_release(tmp_path / "out", program, require_demo()))) == {}


@pytest.mark.slow
def test_a_key_with_a_password_takes_the_right_one(tmp_path: Path) -> None:
    """minisign's own cost: 1 GiB of memory."""
    path = tmp_path / "locked.key"
    path.write_text(LOCKED)
    secret = read_secret_key(path, lambda: "pass")
    public = parse_public_key(LOCKED_PUBLIC, KeyUse.RELEASE)
    packet = parse_signature(sign(b"text", secret, "comment"), where="x")
    assert verify_signature(b"text", packet, [public], where="x").comment == "comment"
    with pytest.raises(TrustError) as caught:
        read_secret_key(path, lambda: "Pass")
    assert (caught.value.slug, caught.value.exit_code) == ("secret-key-locked", 8)


@pytest.mark.parametrize("text", ["", "one line", "a\nnot base64!\n", f"a\n{PLAIN_PUBLIC}\n", PLAIN[:-30]])
def test_what_is_no_secret_key_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.key"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_secret_key(path, no_password)
    assert caught.value.slug == "secret-key-invalid"


def test_a_damaged_key_signs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    path.write_text(PLAIN.replace("kTTm", "kTTn"))  # in the public half or the seed
    with pytest.raises(TrustError):
        sign(b"text", read_secret_key(path, no_password), "comment")


def test_a_password_is_not_asked_where_nobody_can_answer(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locked.key"
    path.write_text(LOCKED)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        words = ["--program", str(program), "--package", str(require_demo()), "--version", "1.0"]
        words += ["--output", str(tmp_path / "out"), "--sign-key", str(path)]
        assert cli.main(["finalize", *words]) == 2
        assert "no terminal to ask on" in capsys.readouterr().err
        assert cli.main(["finalize", *words, "--sign-password-file", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.PUBLIC"])
def test_only_one_of_both_signatures_is_looked_at(program: Path, tmp_path: Path, key: Path, name: str) -> None:
    folder = make_release(tmp_path / "out", program, require_demo(), key=read_secret_key(key, no_password))
    public = parse_public_key(PLAIN_PUBLIC, KeyUse.RELEASE)
    other = {"SHA256SUMS": "SHA256SUMS.PUBLIC", "SHA256SUMS.PUBLIC": "SHA256SUMS"}[name]
    (folder / f"{name}.minisig").write_bytes((folder / f"{other}.minisig").read_bytes())
    with pytest.raises(TrustError) as caught:
        look(folder, keys=(public,))
    assert (caught.value.slug, caught.value.exit_code) == ("signature-invalid", 8)


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.PUBLIC"])
@pytest.mark.parametrize("kind", ["text", "empty", "pipe", "folder", "link out", "link to nothing", "loop"])
def test_anything_under_the_name_of_a_signature_is_uploaded(
    program: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """Nobody's key is known here; a link could be one to the publisher's own secrets."""
    folder = make_release(tmp_path / "out", program, require_demo())
    place = folder / f"{name}.minisig"
    secret = tmp_path / "secret"
    secret.write_text(PLAIN)
    match kind:
        case "text":
            place.write_text("not a signature\n")
        case "empty":
            place.write_bytes(b"")
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "link out":
            place.symlink_to(secret)
        case "link to nothing":
            place.symlink_to("nothing")
        case "loop":
            place.symlink_to(place.name)
    with pytest.raises((TrustError, PackageError)):
        look(folder)
