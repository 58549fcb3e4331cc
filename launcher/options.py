"""The command line as a frozen value. Nothing here imports more than argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

from launcher.errors import UsageError
from launcher.messages import Catalogue, Language, choose_language

KV_TYPES = ("f32", "bf16", "fp16")
_MAX_SEED = (1 << 64) - 1
_MAX_THREADS = 256  # as the engine has it
_MAX_TOKENS = (1 << 32) - 1


class Command(Enum):
    """What the program is asked to do."""

    TALK = "talk"
    VERSION = "version"
    CHECK = "check"
    LIST_CONTEXTS = "list-contexts"
    EXIT_CODES = "help-exit-codes"


class ColorMode(Enum):
    """`--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
    """Sampling as the command line sets it; None leaves the package's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that the command line says. `context` and `max_tokens` in tokens; None means the default."""

    command: Command
    language: Language
    color: ColorMode
    json: bool
    model: Path | None
    demo: bool
    question: str | None
    think: bool
    system: str
    sampling: SamplingOverrides
    max_tokens: int | None
    context: int | None
    kv_cache: str
    threads: int
    force: bool


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


def language_of(arguments: Sequence[str], environ: Mapping[str, str]) -> Language:
    """The language to speak, known before anything else is parsed.

    Raises:
        UsageError: MINDNANO_LANG names no language.
    """
    return choose_language(_language_argument(arguments), environ)


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The options that these arguments mean.

    Raises:
        UsageError: they mean nothing, or contradict each other.
        SystemExit: `--help` was printed.
    """
    texts = Catalogue(language_of(arguments, environ))
    found = _parser(texts).parse_args(arguments)
    command = Command(found.command)
    question = _question(found)
    if found.demo and found.model is not None:
        raise UsageError("usage", "--demo and --model exclude each other")
    if command is Command.TALK and not found.demo and found.model is None:
        raise UsageError("usage", "no model is named", hint="give --model FILE.l3r, or --demo for the built-in one")
    if command is Command.LIST_CONTEXTS and not found.demo and found.model is None:
        raise UsageError("usage", "--list-contexts needs a model", hint="give --model FILE.l3r or --demo")
    if found.json and command in {Command.TALK, Command.EXIT_CODES}:
        raise UsageError("usage", "--json goes with --version, --check or --list-contexts")
    return Options(
        command=command,
        language=texts.language,
        color=ColorMode(found.color),
        json=found.json,
        model=found.model,
        demo=found.demo,
        question=question,
        think=found.think == "on",
        system=found.system,
        sampling=SamplingOverrides(
            temperature=found.temperature,
            top_p=found.top_p,
            top_k=found.top_k,
            min_p=found.min_p,
            repetition_penalty=found.repeat_penalty,
            seed=found.seed,
        ),
        max_tokens=found.max_tokens,
        context=found.context,
        kv_cache=found.kv_cache,
        threads=found.threads,
        force=found.force,
    )


def _question(found: argparse.Namespace) -> str | None:
    words = " ".join(found.question)
    if found.prompt is not None and words:
        raise UsageError("usage", "the question is given twice: as an argument and by --prompt")
    text: str | None = found.prompt if found.prompt is not None else words or None
    if text is not None and not text.strip():
        raise UsageError("no-question", "the question is empty", hint="write it after the command")
    return text


def _language_argument(arguments: Sequence[str]) -> str | None:
    """The value of `--lang`, read before the parser exists because its help and errors speak that language."""
    known = {language.value for language in Language}
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        value = argument.partition("=")[2] if argument.startswith("--lang=") else ""
        if argument == "--lang" and index + 1 < len(arguments):
            value = arguments[index + 1]
        if value in known:
            return value
    return None


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints go the way of all errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message, hint=f"{self.prog} --help lists the options")


def _number(low: float, high: float, *, above: bool = False) -> type[float]:
    """An argparse type: a float in [low, high], or in (low, high] with `above`."""

    def convert(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or value > high or value < low or (above and value == low):
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    convert.__name__ = "number"
    return convert  # type: ignore[return-value]


def _integer(low: int, high: int) -> type[int]:
    """An argparse type: a whole number in [low, high]."""

    def convert(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return value

    convert.__name__ = "whole number"
    return convert  # type: ignore[return-value]


def _tokens(text: str) -> int:
    try:
        return parse_tokens(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser(texts: Catalogue) -> _Parser:
    parser = _Parser(
        prog="mindnano-infer",
        description=texts("help-description"),
        epilog=texts("help-epilog"),
        add_help=False,
        allow_abbrev=False,
    )
    question = parser.add_argument_group(texts("help-group-question"))
    question.add_argument("question", nargs="*", metavar="QUESTION", help=texts("help-question"))
    model = parser.add_argument_group(texts("help-group-model"))
    model.add_argument("--model", type=Path, metavar="FILE.l3r", help=texts("help-model"))
    model.add_argument("--demo", action="store_true", help=texts("help-demo"))
    reply = parser.add_argument_group(texts("help-group-reply"))
    reply.add_argument("--prompt", metavar="TEXT", help=texts("help-prompt"))
    reply.add_argument("--think", choices=("on", "off"), default="on", help=texts("help-think"))
    reply.add_argument("--system", default="", metavar="TEXT", help=texts("help-system"))
    reply.add_argument("--max-tokens", type=_integer(1, _MAX_TOKENS), metavar="N", help=texts("help-max-tokens"))
    reply.add_argument("--temperature", type=_number(0, 100), metavar="T", help=texts("help-temperature"))
    reply.add_argument("--top-p", type=_number(0, 1, above=True), metavar="P", help=texts("help-top-p"))
    reply.add_argument("--top-k", type=_integer(0, _MAX_TOKENS), metavar="K", help=texts("help-top-k"))
    reply.add_argument("--min-p", type=_number(0, 1), metavar="P", help=texts("help-min-p"))
    reply.add_argument(
        "--repeat-penalty", type=_number(0, 100, above=True), metavar="R", help=texts("help-repeat-penalty")
    )
    reply.add_argument("--seed", type=_integer(0, _MAX_SEED), metavar="N", help=texts("help-seed"))
    resources = parser.add_argument_group(texts("help-group-resources"))
    resources.add_argument("--context", type=_tokens, metavar="N", help=texts("help-context"))
    resources.add_argument("--kv-cache", choices=KV_TYPES, default="bf16", help=texts("help-kv-cache"))
    resources.add_argument(
        "--threads", type=_integer(1, _MAX_THREADS), default=0, metavar="N", help=texts("help-threads")
    )
    resources.add_argument("--force", action="store_true", help=texts("help-force"))
    output = parser.add_argument_group(texts("help-group-output"))
    output.add_argument("--color", choices=[mode.value for mode in ColorMode], default="auto", help=texts("help-color"))
    output.add_argument("--lang", choices=[language.value for language in Language], help=texts("help-lang"))
    output.add_argument("--json", action="store_true", help=texts("help-json"))
    inform = parser.add_argument_group(texts("help-group-inform"))
    inform.add_argument("-h", "--help", action="help", help=texts("help-help"))
    commands = inform.add_mutually_exclusive_group()
    for command, slug in (
        (Command.VERSION, "help-version"),
        (Command.CHECK, "help-check"),
        (Command.LIST_CONTEXTS, "help-list-contexts"),
        (Command.EXIT_CODES, "help-exit-codes"),
    ):
        commands.add_argument(
            f"--{command.value}",
            action="store_const",
            dest="command",
            const=command.value,
            default=Command.TALK.value,
            help=texts(slug),
        )
    return parser
