"""A static Python that lacks a module, needs a newer system, or is another one on the other processor.

Building Python takes minutes, so a result is only looked at where it is already in the cache:

    python -m bundle --until python_runtime --target x86_64
    python -m bundle --until python_runtime --target aarch64
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from bundle import pipeline, zig
from bundle.cpython import ABSENT_MODULES
from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.python_runtime import builtin_modules
from bundle.stages import plan
from bundle.store import Store
from bundle.sysroot import GLIBC, SysrootMissing, sysroot
from bundle.workspace import Workspace
from tests.support.availability import unavailable
from tests.support.toy_stages import runner, toy

Facts = Callable[[str], dict[str, Any]]

TARGETS = ("x86_64", "aarch64")
FACTS = Path(__file__).with_name("python_facts.py")

# Modules of the standard library that the portable Python does without: what has no library in it, what is cut out of
# the tree, what belongs to other systems, and what imports one of these.
EXPECTED_MISSING = {
    "_bz2",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "_lzma",
    "_sqlite3",
    "_tkinter",
    "_uuid",
    "_pyrepl",
    "bz2",
    "curses",
    "ensurepip",
    "idlelib",
    "lzma",
    "readline",
    "sqlite3",
    "tkinter",
    "turtle",
    "turtledemo",
    "_ios_support",
    "_overlapped",
    "_scproxy",
    "_winapi",
    "_wmi",
    "msvcrt",
    "pydoc",
    "pydoc_data",
    "nt",
    "winreg",
    "winsound",
}
ALLOWED_NEEDED = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


@cache
def runtime(target: str) -> Path:
    """The cached result for a target; skips or fails the test where there is none."""
    step = plan([pipeline.stages(target)["python_runtime"]])[-1]
    found = Store.of_user().find(step)
    if found is None:
        unavailable(f"not built: python -m bundle --until python_runtime --target {target}")
    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=False,
                encipher_only=None,
                decipher_only=None,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(private)
    return folder / "certificate.pem", folder / "key.pem"


def command(target: str, release: str = "bookworm") -> list[str]:
    """The words that start the interpreter of a target on this machine."""
    program = str(runtime(target) / "python" / "bin" / "python3.13")
    if target == zig.host_target():
        return [program]
    if target != "aarch64":
        pytest.skip(f"programs for {target} cannot run here")
    try:
        return [str(emulator()), "-cpu", CPU, "-L", str(sysroot(release)), program]
    except (EmulatorMissing, SysrootMissing) as error:
        if release == "bullseye":  # past its end of life: it may have left the mirrors
            pytest.skip(f"Debian 11 cannot be had: {error}")
        unavailable(f"no aarch64 system: {error}")


@pytest.fixture(scope="module")
def facts(certificate: tuple[Path, Path]) -> Facts:
    """Asks the Python of a target, once, what it is; skips or fails the test where it is not built or cannot run."""

    @cache
    def ask(target: str) -> dict[str, Any]:
        words = [*command(target), "-B", "-S", "-W", "ignore", str(FACTS), *map(str, certificate)]
        done = subprocess.run(words, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


@pytest.mark.parametrize("target", TARGETS)
def test_the_interpreter_is_whole(target: str, facts: Facts) -> None:
    found = facts(target)
    assert found["version"].startswith("3.13.5 ")
    assert found["build"] == ["main", "Jan  1 2026 00:00:00"]
    assert found["platform"] == f"linux-{target}"
    assert found["machine"] == target
    assert found["pointer"] == 8
    assert found["openssl"].startswith("OpenSSL 3.5.7 ")
    assert found["sha256_of"] == "_hashlib"
    assert found["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found["zlib"].startswith("1.3.2")
    assert found["zlib_round_trip"]
    assert found["ctypes"] == [10, 3]
    assert found["tls"] == "TLSv1.3 hello"
    assert set(found["missing"]) == EXPECTED_MISSING
    assert found["files"] == []
    assert found["prefix"] == str(runtime(target) / "python")


@pytest.mark.parametrize("target", TARGETS)
def test_the_table_of_modules_is_that_of_the_interpreter(target: str, facts: Facts) -> None:
    names = (runtime(target) / "builtins.txt").read_text().split()
    assert names == facts(target)["builtins"]
    assert not set(names) & set(ABSENT_MODULES)


def test_both_processors_have_the_same_python(certificate: tuple[Path, Path], facts: dict[str, dict[str, Any]]) -> None:
    own, other = (facts(target) for target in TARGETS)
    for name in ("hash", "hash_algorithm", "builtins", "missing", "build", "openssl", "zlib"):
        assert own[name] == other[name], name


def test_both_processors_have_the_same_library_of_programs() -> None:
    own, other = (runtime(target) / "python" / "lib" / "python3.13" for target in TARGETS)

    def programs(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*.py") if not path.name.startswith("_sysconfigdata"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in files if "config-" not in str(path)}

    assert programs(own) == programs(other)


def test_both_processors_were_configured_alike() -> None:
    def settings(target: str) -> set[str]:
        header = runtime(target) / "python" / "include" / "python3.13" / "pyconfig.h"
        return {line for line in header.read_text().splitlines() if line.startswith("#define")}

    # What is about the instruction set itself; anything else is a wrong guess of the cross build.
    own = {"#define HAVE_GCC_ASM_FOR_X64 1", "#define HAVE_GCC_ASM_FOR_X87 1"}
    assert settings("x86_64") ^ settings("aarch64") == own


@pytest.mark.parametrize("target", TARGETS)
def test_the_interpreter_needs_only_an_old_c_library(target: str) -> None:
    with (runtime(target) / "python" / "bin" / "python3.13").open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = elf.get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = {tag.entry.d_tag for tag in dynamic.iter_tags()}
        needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
        versions = elf.get_section_by_name(".gnu.version_r")
        assert isinstance(versions, GNUVerNeedSection)
        names = {entry.name for _, entries in versions.iter_versions() for entry in entries}
    assert needed <= ALLOWED_NEEDED
    assert not tags & {"DT_RPATH", "DT_RUNPATH"}
    numbers = {name: tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names}
    assert numbers
    assert {name for name, number in numbers.items() if number > (2, 28)} == set()


@pytest.mark.parametrize("target", TARGETS)
def test_every_object_of_the_library_is_for_its_processor(target: str) -> None:
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[target]
    seen = set()
    count = 0
    for member in members(runtime(target) / "python" / "lib" / "libpython3.13.a"):
        if member[:4] == b"\x7fELF":
            seen.add(int.from_bytes(member[18:20], "little"))
            count += 1
    assert count > 1000
    assert seen == {{"EM_X86_64": 62, "EM_AARCH64": 183}[machine]}


@pytest.mark.parametrize("target", TARGETS)
def test_one_archive_is_all_that_a_program_needs(target: str, tmp_path: Path) -> None:
    python = runtime(target) / "python"

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        source = workspace.work / "program.c"
        source.write_text("#include <Python.h>\nint main(int n, char **words) { return Py_BytesMain(n, words); }\n")
        words = [zig.CC, f"-I{python / 'include' / 'python3.13'}", source, python / "lib" / "libpython3.13.a"]
        workspace.command([*words, "-s", "-rdynamic", "-o", workspace.out / "text"])

    program = runner(tmp_path).build([toy(run=run)])[-1].folder / "text"
    words = [*command(target)[:-1], str(program), "-S", "-c", "import ssl, zlib; print(ssl.OPENSSL_VERSION)"]
    home = {"PYTHONHOME": str(python), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=home, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("OpenSSL 3.5.7 "), done.stderr
    exported = exported_names(program)
    assert "PyLong_FromLong" in exported
    # A library that is loaded at run time must not find these and take them for its own.
    assert not {"SSL_new", "EVP_DigestInit_ex", "inflate", "ffi_call", "OPENSSL_init_crypto"} & exported


def exported_names(program: Path) -> set[str]:
    """Functions and data that a program offers to the libraries that it loads."""
    with program.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {symbol.name for symbol in table.iter_symbols() if symbol.entry.st_shndx != "SHN_UNDEF"}


def members(archive: Path) -> list[bytes]:
    """The contents of the members of a static library, its own tables included."""
    content = archive.read_bytes()
    assert content[:8] == b"!<arch>\n"
    found = []
    position = 8
    while position < len(content):
        size = int(content[position + 48 : position + 58])
        found.append(content[position + 60 : position + 60 + size])
        position += 60 + size + size % 2
    return found


@pytest.mark.slow
@pytest.mark.parametrize("release", GLIBC)
def test_the_cross_built_python_runs_on_every_debian(release: str) -> None:
    code = "import ssl, ctypes, os; print(os.confstr('CS_GNU_LIBC_VERSION'))"
    words = [*command("aarch64", release), "-I", "-B", "-S", "-c", code]
    done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"glibc {GLIBC[release]}\n"


@pytest.mark.parametrize("target", TARGETS)
def test_a_link_leads_from_the_configuration_to_the_library(target: str) -> None:
    python = runtime(target) / "python"
    (config,) = (python / "lib" / "python3.13").glob("config-3.13*")
    assert (config / "libpython3.13.a").samefile(python / "lib" / "libpython3.13.a")
    assert "_ssl" in builtin_modules((config / "config.c").read_text())


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_left_out_stays_out(target: str) -> None:
    folders = {Path(path).name for path, _, _ in os.walk(runtime(target) / "python")}
    assert not folders & {"test", "idlelib", "pydoc_data", "site-packages"}


def test_a_table_of_modules_is_read() -> None:
    entries = '    {"atexit", PyInit_atexit},\n\n    {"sys", NULL},\n    {0, 0}\n'
    text = f"struct _inittab _PyImport_Inittab[] = {{\n{entries}}};\n"
    assert builtin_modules(text) == ("atexit", "sys")
