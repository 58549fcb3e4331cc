"""A damaged program that starts all the same, a sound one that refuses, and variables that reach the interpreter.

The program is tests/bundle/programs/tiny.c, which holds the same start-up code and the same payload as the product.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.payload import Packed
from bundle.sysroot import GLIBC, SysrootMissing, sysroot
from launcher.payload.file import SEAL_BYTES, SEAL_HASHED
from tests.bundle.support import tiny_elf, tiny_packed
from tests.support.availability import unavailable
from tests.support.qemu import aarch64_command

UNSUPPORTED = 3
DAMAGED = 4


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return tiny_packed(tmp_path_factory.mktemp("tiny"))


def run(program: Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], env=environ or {}, capture_output=True, text=True, errors="replace", timeout=60)


def changed(packed: Packed, folder: Path, data: bytes) -> subprocess.CompletedProcess[str]:
    """Runs the program with other bytes."""
    path = folder / "changed"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o755)
    return run(path)


def refused(done: subprocess.CompletedProcess[str], slug: str = "program-damaged", code: int = DAMAGED) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith(f"error ({slug}): ")
    assert done.stderr.count("\n") == 1


def test_sound_program_runs_and_knows_its_measures(packed: Packed) -> None:
    done = run(packed.path)
    assert done.returncode == 0, done.stderr
    size, elf, directory, nanoseconds, digest = done.stdout.splitlines()[-1].split()[1:]
    data = packed.path.read_bytes()
    assert (int(size), int(elf)) == (len(data), packed.elf_bytes)
    assert data[int(directory) :][:4] == b"PK\x01\x02"
    assert int(nanoseconds) > 0
    assert digest == hashlib.sha256(data[: len(data) - SEAL_BYTES + SEAL_HASHED]).hexdigest()


def test_program_runs_after_its_file_was_moved_and_under_another_name(packed: Packed, tmp_path: Path) -> None:
    shutil.copy(packed.path, tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "another name")
    (tmp_path / "link").symlink_to("another name")
    assert run(tmp_path / "link").returncode == 0


def test_every_changed_bit_outside_the_loaded_part_is_found(packed: Packed, tmp_path: Path) -> None:
    # Inside the ELF part a changed bit may well end the program in another way; the next test looks there.
    generator = random.Random(4)
    data = bytearray(packed.path.read_bytes())
    for _ in range(120):
        place = generator.randrange(packed.elf_bytes, len(data))
        bit = 1 << generator.randrange(8)
        data[place] ^= bit
        refused(changed(packed, tmp_path, bytes(data)))
        data[place] ^= bit


def test_changed_bits_of_the_program_never_pass(packed: Packed, tmp_path: Path) -> None:
    generator = random.Random(5)
    data = bytearray(packed.path.read_bytes())
    for _ in range(120):
        place = generator.randrange(64, packed.elf_bytes)
        bit = 1 << generator.randrange(8)
        data[place] ^= bit
        done = changed(packed, tmp_path, bytes(data))
        assert done.returncode != 0, f"bit {bit} of byte {place}: {done}"
        data[place] ^= bit


def test_truncated_and_extended_files_are_refused(packed: Packed, tmp_path: Path) -> None:
    data = packed.path.read_bytes()
    for length in (packed.elf_bytes, packed.elf_bytes + 1, len(data) - SEAL_BYTES, len(data) - 32, len(data) - 1):
        refused(changed(packed, tmp_path, data[:length]))
    for extra in (b"\n", b"\0" * 4096, data[-SEAL_BYTES:]):
        refused(changed(packed, tmp_path, data + extra))
    refused(changed(packed, tmp_path, data + data))  # a whole program, but not the one that runs
    refused(changed(packed, tmp_path, data[:-SEAL_BYTES] + b"\0" + data[-SEAL_BYTES:]))


def test_unpacked_and_stripped_programs_are_refused(packed: Packed, tmp_path: Path) -> None:
    refused(changed(packed, tmp_path, packed.path.read_bytes()[: packed.elf_bytes]))
    strip = shutil.which("strip")
    if strip is None:
        unavailable("strip is not installed")
    shutil.copy(packed.path, tmp_path / "stripped")
    subprocess.run([strip, tmp_path / "stripped"], check=True)
    refused(run(tmp_path / "stripped"))


@pytest.mark.parametrize("digits", ["ABCDEF0123456789", "+123456789abcdef", "000000000000000 ", "\0" * 16])
def test_seals_with_other_digits_are_no_seals(packed: Packed, tmp_path: Path, digits: str) -> None:
    data = packed.path.read_bytes()
    for at in (8, 25, 42):
        seal = len(data) - SEAL_BYTES + at
        refused(changed(packed, tmp_path, data[:seal] + digits.encode() + data[seal + 16 :]))


def test_fitting_digest_does_not_save_a_wrong_length(packed: Packed, tmp_path: Path) -> None:
    data = packed.path.read_bytes()
    head = data[:-SEAL_BYTES] + f"MNSEAL1 {len(data) - 1:016x} ".encode() + data[len(data) - SEAL_BYTES + 25 :][:34]
    done = changed(packed, tmp_path, head + hashlib.sha256(head).hexdigest().encode() + b"\n")
    refused(done)
    assert "another length" in done.stderr


def test_environment_cannot_switch_the_check_off(packed: Packed, tmp_path: Path) -> None:
    data = bytearray(packed.path.read_bytes())
    data[-SEAL_BYTES - 200] ^= 1
    path = tmp_path / "changed"
    path.write_bytes(data)
    path.chmod(0o755)
    names = ("L3_DEV", "MINDNANO_DEV", "MINDNANO_NO_CHECK", "MINDNANO_SKIP_SELF_CHECK", "PYTHONDEVMODE", "NUITKA_X")
    refused(run(path, dict.fromkeys(names, "1")))


def test_program_that_may_not_be_read_says_so(packed: Packed, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unavailable("only root can hand a file to another user")
    folder = Path(tmp_path.anchor) / "var" / "tmp"
    path = folder / f"mindnano-unreadable-{os.getpid()}"
    shutil.copy(packed.path, path)
    try:
        path.chmod(0o711)
        done = subprocess.run([path], env={}, capture_output=True, text=True, user=65534, group=65534)
    finally:
        path.unlink()
    refused(done, "program-unchecked", UNSUPPORTED)


def test_interpreters_variables_do_not_arrive(packed: Packed) -> None:
    stay = {
        "PATH": "/bin",
        "PYTHO": "1",
        "XPYTHONHOME": "1",
        "MINDNANO_LANG": "zh",
        "LD_LIBRARY_PATH": "/x",
        "nuitka_": "1",
    }
    go = {
        "PYTHONDEVMODE": "1",
        "PYTHONMALLOC": "debug",
        "PYTHONHASHSEED": "bad",
        "PYTHONHOME": "/x",
        "PYTHON": "1",
        "_PYTHON_SYSCONFIGDATA_NAME": "evil",
        "NUITKA_ORIGINAL_ARGV0": "x",
    }
    for environ in (stay | go, go | stay, go, stay):
        lines = run(packed.path, environ).stdout.splitlines()
        seen = [line.removeprefix("environment ") for line in lines if line.startswith("environment ")]
        assert sorted(seen) == sorted(f"{name}={value}" for name, value in environ.items() if name in stay)


def test_closed_streams_and_little_memory_do_not_matter(packed: Packed) -> None:
    def closed() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))

    assert subprocess.run([packed.path], env={}, preexec_fn=closed).returncode == 0


def test_aarch64_program_checks_itself(tmp_path: Path) -> None:
    packed = tiny_packed(tmp_path, "aarch64", static=True)
    command = aarch64_command(packed.path)
    done = subprocess.run(command, env={"PYTHONHOME": "x"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PYTHONHOME" not in done.stdout
    data = bytearray(packed.path.read_bytes())
    assert done.stdout.split()[-1] == hashlib.sha256(data[: len(data) - SEAL_BYTES + SEAL_HASHED]).hexdigest()
    data[-1000] ^= 1
    packed.path.write_bytes(data)
    refused(subprocess.run(command, env={}, capture_output=True, text=True))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return tiny_packed(tmp_path_factory.mktemp("arm"), "aarch64")


@pytest.mark.parametrize("release", sorted(GLIBC))
def test_aarch64_program_checks_itself_with_every_glibc(arm: Packed, release: str) -> None:
    try:
        command = [str(emulator()), "-cpu", CPU, "-L", str(sysroot(release)), str(arm.path)]
    except (EmulatorMissing, SysrootMissing) as error:
        if release == "bullseye":  # past its end of life: it may have left the mirrors
            pytest.skip(f"Debian 11 cannot be had: {error}")
        unavailable(f"no aarch64 system: {error}")
    done = subprocess.run(command, env={"PYTHONHOME": "x", "STAYS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "environment STAYS=1" in done.stdout
    assert "PYTHONHOME" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_before_the_launcher_has_handlers_ends_it_with_its_code(
    packed: Packed, number: signal.Signals
) -> None:
    with subprocess.Popen([packed.path, "wait"], env={}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number


def test_a_signal_that_was_ignored_stays_ignored(packed: Packed) -> None:
    words = ["sh", "-c", 'trap "" INT; exec "$0" wait', str(packed.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_unsealed_program_is_what_the_linker_writes(tmp_path: Path) -> None:
    refused(run(tiny_elf(tmp_path)))
