"""Every option, once: its name, how a text becomes its value, its default, and the commands that it belongs to.

The command line, the configuration files, the environment, `--print-config` and shell completion are all derived from
this table. An option ``kv-cache`` is ``--kv-cache`` on the command line, ``kv-cache`` in TOML and ``MINDNANO_KV_CACHE``
in the environment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

KV_TYPES: Final = ("f32", "bf16", "fp16", "fp8", "int8")
DEFAULT_PORT: Final = 9092
_MAX_SEED = (1 << 64) - 1
_MAX_THREADS = 256  # as the engine has it
_MAX_TOKENS = (1 << 32) - 1
_MAX_BUDGET = (1 << 31) - 1  # as a request's own
_MAX_SECONDS = 86400.0 * 365


class Command(Enum):
    """What the program is asked to do; the value is the flag that asks for it."""

    TALK = "talk"
    SERVE = "no-console"
    CHECK = "check"
    LIST_CONTEXTS = "list-contexts"
    VERIFY = "verify"
    DOWNLOAD = "download"
    PRINT_CONFIG = "print-config"
    PRINT_COMPLETION = "print-completion"
    PRINT_UNIT = "print-unit"
    NOTICES = "notices"
    SBOM = "sbom"
    LIST_PAYLOAD = "list-payload"
    UNPACK = "unpack"
    VERIFY_SELF = "verify-self"
    VERSION = "version"
    EXIT_CODES = "help-exit-codes"


class ColorMode(Enum):
    """`--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class MlaBackend(Enum):
    """`--mla-backend`: what multiplies the matrices."""

    AUTO = "auto"
    CPU = "cpu"
    NPU = "npu"


Value = str | int | float | bool | Path | tuple[str, ...] | None


def parse_tokens(text: str) -> int:
    """``"4K"`` -> 4096, ``"1000"`` -> 1000.

    Raises:
        ValueError: not a positive number of tokens.
    """
    number = text.strip()
    scale = 1
    if number[-1:] in {"k", "K"}:
        number, scale = number[:-1], 1024
    if not number.isascii() or not number.isdigit() or not 0 < int(number) * scale <= _MAX_TOKENS:
        raise ValueError(f"{text!r} is not a number of tokens such as 4096 or 4K")
    return int(number) * scale


def _integer(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{text} is not between {low} and {high}")
        return value

    return convert


def _number(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    """A number in [low, high], or in (low, high] with `above`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or value > high or value < low or (above and value == low):
            raise ValueError(f"{text} is not between {low:g} and {high:g}")
        return value

    return convert


def _choice(*words: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return convert


def _path(text: str) -> Path:
    if not text:
        raise ValueError("the path is empty")
    return Path(text)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _origin(text: str) -> str:
    """An origin as a browser sends it, or ``*``."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", text):
        raise ValueError(f"{text!r} is not an origin such as https://example.org, without a path")
    return text


def _digest(text: str) -> str:
    if len(text) != 64 or not set(text) <= set("0123456789abcdefABCDEF"):
        raise ValueError(f"{text!r} is not a SHA-256 digest of 64 hexadecimal digits")
    return text.lower()


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[text.lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: without dashes in front.
        group: where `--help` lists it; ``help-group-GROUP`` and ``help-NAME`` are its texts.
        parse: text -> value; raises ValueError that says what is wrong.
        default: the value of the first layer.
        metavar: what stands for the value in `--help`; empty for a flag.
        choices: the values, where there are only a few.
        commands: which commands it belongs to; empty for all. In a file or the environment it is allowed everywhere,
            because those are shared by all commands.
        configurable: whether it may stand in a file or the environment; what belongs to one call may not.
        repeatable: it may be given several times, in a file as a list, in the environment between commas; `parse` reads
            one of them, and the value is a tuple.
        secret: `--print-config` and the unit do not show its value.
    """

    name: str
    group: str
    parse: Callable[[str], Value]
    default: Value
    metavar: str = ""
    choices: tuple[str, ...] = ()
    commands: frozenset[Command] = frozenset()
    configurable: bool = True
    repeatable: bool = False
    secret: bool = False

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value on the command line."""
        return self.parse is _flag

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "MINDNANO_" + self.name.upper().replace("-", "_")


_PACKAGE_COMMANDS = frozenset({Command.TALK, Command.SERVE, Command.CHECK, Command.LIST_CONTEXTS, Command.PRINT_UNIT})
_RUN = _PACKAGE_COMMANDS
_TALK = frozenset({Command.TALK})
_REPLY = frozenset({Command.TALK, Command.SERVE, Command.PRINT_UNIT})
_PLAN = frozenset({Command.CHECK, Command.LIST_CONTEXTS, Command.SERVE, Command.PRINT_UNIT})
_SERVER = frozenset({Command.CHECK, Command.SERVE, Command.PRINT_UNIT})
_SERVE = frozenset({Command.SERVE, Command.PRINT_UNIT})
_CHECK = frozenset({Command.CHECK})
_DOWNLOAD = frozenset({Command.DOWNLOAD})
_JSON = frozenset(
    {
        Command.CHECK,
        Command.LIST_CONTEXTS,
        Command.LIST_PAYLOAD,
        Command.PRINT_CONFIG,
        Command.VERIFY,
        Command.VERSION,
    }
)


def _choices(name: str, group: str, words: tuple[str, ...], default: str, commands: frozenset[Command]) -> Option:
    return Option(
        name=name,
        group=group,
        parse=_choice(*words),
        default=default,
        metavar="|".join(words),
        choices=words,
        commands=commands,
    )


def _switch(name: str, group: str, commands: frozenset[Command], *, configurable: bool = True) -> Option:
    return Option(name=name, group=group, parse=_flag, default=False, commands=commands, configurable=configurable)


def _several(
    name: str,
    group: str,
    parse: Callable[[str], Value],
    metavar: str,
    commands: frozenset[Command],
    *,
    secret: bool = False,
) -> Option:
    return Option(
        name=name,
        group=group,
        parse=parse,
        default=(),
        metavar=metavar,
        commands=commands,
        repeatable=True,
        secret=secret,
    )


OPTIONS: Final[tuple[Option, ...]] = (
    Option(name="model", group="model", parse=_path, default=None, metavar="FILE.l3r"),
    _switch("demo", "model", frozenset()),
    Option(name="model-dir", group="model", parse=_path, default=None, metavar="DIR"),
    Option(name="prompt", group="reply", parse=str, default=None, metavar="TEXT", commands=_TALK, configurable=False),
    _choices("think", "reply", ("on", "off"), "on", _REPLY),
    Option(name="system", group="reply", parse=str, default="", metavar="TEXT", commands=_TALK),
    Option(
        name="max-tokens", group="reply", parse=_integer(1, _MAX_TOKENS), default=None, metavar="N", commands=_REPLY
    ),
    Option(name="temperature", group="reply", parse=_number(0, 100), default=None, metavar="T", commands=_REPLY),
    Option(name="top-p", group="reply", parse=_number(0, 1, above=True), default=None, metavar="P", commands=_REPLY),
    Option(name="top-k", group="reply", parse=_integer(0, _MAX_TOKENS), default=None, metavar="K", commands=_REPLY),
    Option(name="min-p", group="reply", parse=_number(0, 1), default=None, metavar="P", commands=_REPLY),
    Option(
        name="repeat-penalty",
        group="reply",
        parse=_number(0, 100, above=True),
        default=None,
        metavar="R",
        commands=_REPLY,
    ),
    Option(name="seed", group="reply", parse=_integer(0, _MAX_SEED), default=None, metavar="N", commands=_REPLY),
    Option(name="context", group="resources", parse=parse_tokens, default=None, metavar="N", commands=_RUN),
    _choices("kv-cache", "resources", KV_TYPES, "bf16", _RUN),
    Option(
        name="threads", group="resources", parse=_integer(1, _MAX_THREADS), default=None, metavar="N", commands=_RUN
    ),
    Option(
        name="prefix-checkpoints",
        group="resources",
        parse=_integer(0, 64),
        default=None,
        metavar="N",
        commands=_RUN,
    ),
    Option(
        name="session-cache-mib",
        group="resources",
        parse=_integer(0, 1 << 20),
        default=None,
        metavar="N",
        commands=_PLAN,
    ),
    _switch("mtp", "resources", _PLAN),
    _choices("mla-backend", "resources", tuple(mode.value for mode in MlaBackend), "auto", _RUN),
    _switch("force", "resources", _RUN),
    Option(name="host", group="server", parse=str, default="127.0.0.1", metavar="ADDRESS", commands=_SERVER),
    Option(name="port", group="server", parse=_integer(1, 65535), default=DEFAULT_PORT, metavar="N", commands=_SERVER),
    _switch("allow-lan", "server", _SERVE),
    _several("api-key", "server", _text, "KEY", _SERVE, secret=True),
    Option(name="api-key-file", group="server", parse=_path, default=None, metavar="FILE", commands=_SERVE),
    _several("allow-host", "server", _text, "NAME", _SERVE),
    _several("cors-origin", "server", _origin, "ORIGIN", _SERVE),
    Option(name="tls-cert", group="server", parse=_path, default=None, metavar="FILE.pem", commands=_SERVE),
    Option(name="tls-key", group="server", parse=_path, default=None, metavar="FILE.pem", commands=_SERVE),
    Option(name="queue", group="server", parse=_integer(0, 1000), default=8, metavar="N", commands=_SERVE),
    Option(
        name="thinking-budget",
        group="server",
        parse=_integer(0, _MAX_BUDGET),
        default=None,
        metavar="N",
        commands=_SERVE,
    ),
    Option(
        name="request-timeout",
        group="server",
        parse=_number(0, _MAX_SECONDS, above=True),
        default=None,
        metavar="SECONDS",
        commands=_SERVE,
    ),
    Option(
        name="drain-timeout",
        group="server",
        parse=_number(0, _MAX_SECONDS),
        default=30.0,
        metavar="SECONDS",
        commands=_SERVE,
    ),
    Option(
        name="sleep-idle-seconds",
        group="server",
        parse=_number(0, _MAX_SECONDS),
        default=0.0,
        metavar="SECONDS",
        commands=_SERVE,
    ),
    Option(name="session-dir", group="server", parse=_path, default=None, metavar="DIR", commands=_SERVE),
    Option(
        name="session-dir-mib",
        group="server",
        parse=_integer(0, 1 << 24),
        default=2048,
        metavar="N",
        commands=_SERVE,
    ),
    Option(
        name="sha256",
        group="download",
        parse=_digest,
        default=None,
        metavar="HEX",
        commands=_DOWNLOAD,
        configurable=False,
    ),
    Option(
        name="cacert",
        group="download",
        parse=_path,
        default=None,
        metavar="FILE.pem",
        commands=_DOWNLOAD | _TALK,
    ),
    _switch("offline", "download", _DOWNLOAD | _TALK),
    Option(
        name="assume-board", group="check", parse=str, default=None, metavar="SOC", commands=_CHECK, configurable=True
    ),
    _switch("report", "check", _CHECK, configurable=False),
    _switch("strict", "check", _CHECK | {Command.VERIFY}),
    Option(name="log", group="output", parse=_path, default=None, metavar="FILE", commands=_RUN),
    Option(name="log-max-mib", group="output", parse=_integer(0, 1 << 20), default=64, metavar="N", commands=_REPLY),
    _switch("log-prompts", "output", _SERVE),
    _choices("color", "output", tuple(mode.value for mode in ColorMode), "auto", frozenset()),
    Option(
        name="lang",
        group="output",
        parse=_choice("en", "zh"),
        default=None,
        metavar="en|zh",
        choices=("en", "zh"),
    ),
    _switch("json", "output", _JSON, configurable=False),
)

BY_NAME: Final = {option.name: option for option in OPTIONS}
BY_VARIABLE: Final = {option.variable: option for option in OPTIONS if option.configurable}
# Variables that are no options: they name files for development, and the shell of the set-up scripts.
OTHER_VARIABLES: Final = frozenset(
    {"MINDNANO_CACHE", "MINDNANO_DEMO_PACKAGE", "MINDNANO_ENGINE", "MINDNANO_RKNN_RUNTIME", "MINDNANO_SOURCES"}
)
