"""The command lines of `mindnano finalize` and `mindnano verify`. What they need is imported only when they run."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from launcher.errors import MindnanoError, TrustError, UsageError

if TYPE_CHECKING:
    from launcher.integrity.signature import PublicKey
    from release.folder.signing import SecretKey

_DIST: Final = Path(__file__).parents[2] / "dist"
_MAX_BYTES: Final = 4096


def add_finalize(parser: argparse.ArgumentParser, *, demo: Path) -> None:
    """Declares the options of finalize. `demo` is the built-in model's package."""
    parser.description = (
        "Makes a release folder of a portable program and a package: both files, MANIFEST.json, MODEL.json, checksums,"
        " licences, bill of materials, model card and provenance. Everything is taken from the two files."
    )
    program = parser.add_mutually_exclusive_group()
    program.add_argument("--target", choices=("x86_64", "aarch64"), help="take dist/TARGET/mindnano-infer")
    program.add_argument("--program", type=Path, metavar="FILE", help="the portable program")
    package = parser.add_mutually_exclusive_group(required=True)
    package.add_argument("--package", type=Path, metavar="X.l3r", help="the weights")
    package.add_argument("--demo", action="store_const", const=demo, dest="package", help="the built-in model")
    parser.add_argument("--version", required=True, metavar="V", help="version of the release, such as 1.2.3")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--name", help="name of the model and, with .l3r, of its file (default: ling3-tiny-w4, or out of the package)"
    )
    parser.add_argument(
        "--weights-license", metavar="ID", help="MIT, Apache-2.0 or CC-BY-NC-4.0 (default: what the package names)"
    )
    parser.add_argument(
        "--base-license-file",
        type=Path,
        metavar="FILE",
        help="the base model's LICENSE, word for word (default: the usual text of its licence)",
    )
    parser.add_argument(
        "--fidelity",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what mindnano fidelity --json printed about this package, for the card; the first for MODEL.json too"
        " (default with --demo: the reports of the built-in model)",
    )
    parser.add_argument("--sign-key", type=Path, metavar="FILE", help="sign both lists with this key of minisign")
    parser.add_argument(
        "--sign-password-file", type=Path, metavar="FILE", help="the key's password (default: ask on the terminal)"
    )
    parser.set_defaults(command=_finalize, demo_package=demo)


def _finalize(arguments: argparse.Namespace) -> None:
    from bundle.zig import host_target
    from release.folder.checkout import read_checkout
    from release.folder.finalize import FinalizeOptions, finalize
    from release.folder.program_facts import NAME

    options = FinalizeOptions(
        program=arguments.program or _DIST / (arguments.target or host_target()) / NAME,
        package=arguments.package,
        version=arguments.version,
        output=arguments.output,
        checkout=read_checkout(os.environ),
        name=arguments.name,
        weights_licence=arguments.weights_license,
        base_licence_file=arguments.base_license_file,
        fidelity=_reports(arguments),
        key=_secret_key(arguments),
    )
    print(finalize(options))


def _reports(arguments: argparse.Namespace) -> tuple[Path, ...]:
    from release.folder.fidelity import DEMO_REPORTS

    if arguments.fidelity is not None:
        return tuple(arguments.fidelity)
    return DEMO_REPORTS if arguments.package is arguments.demo_package else ()


def _secret_key(arguments: argparse.Namespace) -> SecretKey | None:
    from release.folder.signing import read_secret_key

    if arguments.sign_key is None:
        return None
    return read_secret_key(arguments.sign_key, lambda: _password(arguments.sign_password_file))


def _password(file: Path | None) -> str:
    from launcher.integrity.release_files import read_capped

    if file is not None:
        data = read_capped(file, _MAX_BYTES)
        if data is None:
            raise UsageError("password-missing", f"there is no file {file}", hint="Name the file with the password.")
        return data.decode(errors="surrogateescape").rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError(
            "password-missing",
            "the key is protected by a password, and there is no terminal to ask on",
            hint="Give --sign-password-file FILE.",
        )
    return getpass.getpass("Password of the key: ", stream=sys.stderr)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Declares the options of verify."""
    parser.description = (
        "Checks a release folder: sums, sizes, signature, licences, bill of materials, card, provenance, the program's"
        " own payload, and three tokens that the package must say. Nothing in the folder is started or changed."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release")
    parser.add_argument(
        "--public-key",
        type=Path,
        action="append",
        metavar="FILE.pub",
        help="the release must be signed by this key (default: a signature, where there is one, must be by a key in"
        " launcher/integrity/publisher.json)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(command=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from release.folder.verify import VerifyOptions, verify
    from release.folder.verify_result import failure_json
    from release.showing import show

    try:
        keys, signed = _public_keys(arguments.public_key), arguments.public_key is not None
        result = verify(VerifyOptions(folder=arguments.folder, keys=keys, signed=signed))
    except MindnanoError as error:
        if arguments.json:
            show(failure_json(arguments.folder, error))
        raise
    show(result.to_json() if arguments.json else result.to_text())
    return result.exit_code


def _public_keys(files: list[Path] | None) -> tuple[PublicKey, ...]:
    from launcher.integrity.publisher import read_publisher
    from launcher.integrity.release_files import read_capped
    from launcher.integrity.signature import KeyUse, parse_public_key

    if files is None:
        return read_publisher().keys
    keys = []
    for file in files:
        data = read_capped(file, _MAX_BYTES)
        if data is None:
            raise TrustError("public-key-missing", f"there is no file {file}", hint="Give the .pub file of minisign.")
        lines = data.decode(errors="replace").split("\n")
        keys.append(parse_public_key(lines[1].strip() if len(lines) > 1 else "", KeyUse.RELEASE))
    return tuple(keys)
