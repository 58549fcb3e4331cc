"""The five layers of options: default < /etc/mindnano/config.toml < the user's file < MINDNANO_* < command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.options.table import BY_NAME, BY_VARIABLE, OPTIONS, OTHER_VARIABLES, Option, Value

SYSTEM_FILE = Path("/etc/mindnano/config.toml")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of an option and where it came from: ``default``, a file, a variable or ``command line``."""

    value: Value
    origin: str


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's file is, whether it exists or not; None without a home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):  # the specification says to ignore a relative one
        return Path(base) / "mindnano" / "config.toml"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "mindnano" / "config.toml" if home else None


def config_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files, the weaker one first."""
    own = user_file(environ)
    return (SYSTEM_FILE,) if own is None else (SYSTEM_FILE, own)


def merge(given: Mapping[str, Value], environ: Mapping[str, str], files: Sequence[Path]) -> dict[str, Setting]:
    """Every option's setting; later layers win.

    Raises:
        UsageError: a file is no TOML, a key or a variable is unknown, or a value is wrong.
    """
    settings = {option.name: Setting(value=option.default, origin="default") for option in OPTIONS}
    for path in files:
        settings.update(_from_file(path))
    settings.update(_from_environment(environ))
    settings.update({name: Setting(value=value, origin="command line") for name, value in given.items()})
    return settings


def _from_file(path: Path) -> dict[str, Setting]:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
            data = b"" if is_pipe else file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(
            "config-unreadable", f"{path} cannot be read: {error.strerror}", hint="correct its permissions or remove it"
        ) from error
    if is_pipe:
        raise UsageError("config-invalid", f"{path} is a pipe, expected a file", hint="remove it")
    if len(data) > _MAX_BYTES:
        raise UsageError("config-invalid", f"{path} is larger than {_MAX_BYTES} bytes; expected a few lines of TOML")
    import tomllib

    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and thousands of brackets
        raise UsageError("config-invalid", f"{path} is not valid TOML: {error}", hint="correct or remove it") from error
    known = [option.name for option in OPTIONS if option.configurable]
    settings = {}
    for key, value in found.items():
        if key not in known:
            raise UsageError("config-unknown", f"{path}: there is no option {key!r}", hint=_suggest(key, known))
        try:
            settings[key] = Setting(value=_from_toml(BY_NAME[key], value, path), origin=str(path))
        except ValueError as error:  # a number that is too long to be shown
            raise _wrong(f"{path}: {key}", str(error)) from error
    return settings


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe would wait for its writer for ever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _from_toml(option: Option, value: object, path: Path) -> Value:
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise _wrong(f"{path}: {option.name}", f"{value!r} is neither true nor false")
    place = f"{path}: {option.name}"
    if option.repeatable and isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise _wrong(place, "expected a list of texts")
        return _parse_several(option, value, place)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(place, f"{value!r} is no value for it")
    return _parse_several(option, [str(value)], place) if option.repeatable else _parse(option, str(value), place)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    settings = {}
    for name in sorted(environ):
        if not name.startswith("MINDNANO_") or name in OTHER_VARIABLES:
            continue
        option = BY_VARIABLE.get(name)
        if option is None:
            hint = _suggest(name, [*BY_VARIABLE, *OTHER_VARIABLES])
            raise UsageError("config-unknown", f"the variable {name} is no option", hint=hint)
        if environ[name]:  # an empty one counts as not set
            text = environ[name]
            value = _parse_several(option, text.split(","), name) if option.repeatable else _parse(option, text, name)
            settings[option.name] = Setting(value=value, origin=name)
    return settings


def _parse(option: Option, text: str, place: str) -> Value:
    try:
        return option.parse(text)
    except ValueError as error:
        raise _wrong(place, str(error)) from error


def _parse_several(option: Option, texts: Sequence[str], place: str) -> Value:
    return tuple(str(_parse(option, text.strip(), place)) for text in texts)


def _wrong(place: str, problem: str) -> UsageError:
    return UsageError("config-value", f"{place}: {problem}", hint="mindnano-infer --help says what is possible")


def _suggest(name: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "mindnano-infer --print-config lists the options"
