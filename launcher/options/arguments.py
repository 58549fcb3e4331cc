"""The command line as words -> which command, which options with their values, which question."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from launcher.errors import UsageError
from launcher.messages import Catalogue
from launcher.options.table import OPTIONS, Command, Option, Value

_HELP = "mindnano-infer --help lists the options"
SHELLS = ("bash", "zsh", "fish")
_GROUPS = ("model", "reply", "resources", "server", "download", "check", "output")
# Flags that ask for a command, in the order of `--help`. With a value: (metavar, whether it may be left out, choices).
COMMANDS: tuple[tuple[Command, tuple[str, bool, tuple[str, ...]] | None], ...] = (
    (Command.SERVE, None),
    (Command.CHECK, ("deep", True, ("deep",))),
    (Command.LIST_CONTEXTS, None),
    (Command.VERIFY, ("DIR", True, ())),
    (Command.DOWNLOAD, ("SOURCE", True, ())),
    (Command.PRINT_CONFIG, None),
    (Command.PRINT_UNIT, None),
    (Command.PRINT_COMPLETION, ("SHELL", False, SHELLS)),
    (Command.NOTICES, ("COMPONENT", True, ())),
    (Command.SBOM, None),
    (Command.LIST_PAYLOAD, None),
    (Command.UNPACK, ("DIR", False, ())),
    (Command.VERIFY_SELF, None),
    (Command.EXIT_CODES, None),
    (Command.VERSION, None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What stands on the command line. `operand` is the value of the command's own flag."""

    command: Command
    operand: str | None
    question: str | None
    values: dict[str, Value]


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints go the way of all errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message, hint=_HELP)


class _Ask(argparse.Action):
    """A flag that asks for a command; two different ones contradict each other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        if namespace.command is not None:
            parser.error(f"argument {option_string}: not allowed with argument --{namespace.command}")
        namespace.command = self.dest
        namespace.operand = values if isinstance(values, str) else None


def _converter(option: Option) -> type[str]:
    """The option's parser as an argparse type, which wants its own exception."""

    def convert(text: str) -> Value:
        try:
            return option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert  # type: ignore[return-value]


def build_parser(texts: Catalogue) -> argparse.ArgumentParser:
    """The parser, its help in the language of the catalogue."""
    parser = _Parser(
        prog="mindnano-infer",
        usage=texts("help-usage"),
        description=texts("help-description"),
        epilog=texts("help-epilog"),
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=100),
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(command=None, operand=None)
    question = parser.add_argument_group(texts("help-group-question"))
    question.add_argument("question", nargs="*", metavar="QUESTION", default=[], help=texts("help-question"))
    commands = parser.add_argument_group(texts("help-group-inform"))
    for command, operand in COMMANDS:
        text = texts(f"help-{command.value}")
        if operand is None:
            commands.add_argument(f"--{command.value}", action=_Ask, nargs=0, dest=command.value, help=text)
            continue
        metavar, optional, choices = operand
        commands.add_argument(
            f"--{command.value}",
            action=_Ask,
            nargs="?" if optional else None,
            dest=command.value,
            choices=choices or None,
            metavar="|".join(choices) if choices and not optional else metavar,
            help=text,
        )
    commands.add_argument("-h", "--help", action="help", help=texts("help-help"))
    for name in _GROUPS:
        group = parser.add_argument_group(texts(f"help-group-{name}"))
        for option in OPTIONS:
            if option.group == name:
                _add(group, option, texts)
    return parser


def _add(group: argparse._ArgumentGroup, option: Option, texts: Catalogue) -> None:
    text = texts(f"help-{option.name}")
    if option.is_flag:
        group.add_argument(f"--{option.name}", dest=f"option:{option.name}", action="store_true", help=text)
        if option.configurable:  # takes back what a file or the environment sets
            group.add_argument(
                f"--no-{option.name}", dest=f"option:{option.name}", action="store_false", help=argparse.SUPPRESS
            )
        return
    group.add_argument(
        f"--{option.name}",
        dest=f"option:{option.name}",
        type=_converter(option),
        action="append" if option.repeatable else "store",
        metavar=option.metavar,
        help=text,
    )


def read_arguments(words: Sequence[str], texts: Catalogue) -> Arguments:
    """What these words mean.

    Raises:
        UsageError: they mean nothing, or contradict each other.
        SystemExit: `--help` was printed.
    """
    namespace, unknown = build_parser(texts).parse_known_args(words)
    if unknown:
        raise _unknown(unknown[0])
    found = vars(namespace)
    command = Command(found["command"] or Command.TALK.value)
    values = {
        name.partition(":")[2]: tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if name.startswith("option:")
    }
    for option in OPTIONS:
        if command is Command.PRINT_CONFIG:  # shows what any command would see
            break
        if option.name in values and option.commands and command not in option.commands:
            problem = f"--{option.name} does not go with {_name(command)}"
            raise UsageError("option-elsewhere", problem, hint=_where(option))
    if found["operand"] == "":  # as from a variable that is not set; as a path it would be the current folder
        raise UsageError("usage", f"the value of {_name(command)} is empty", hint=_HELP)
    question = _question(found["question"], values.get("prompt"))
    if question is not None and command is not Command.TALK:
        raise UsageError("usage", f"a question does not go with {_name(command)}")
    return Arguments(command=command, operand=found["operand"], question=question, values=values)


def _unknown(word: str) -> UsageError:
    """The error for a word that is no option."""
    import difflib

    name = word.partition("=")[0]
    known = ["--help", *(f"--{command.value}" for command, _ in COMMANDS), *(f"--{option.name}" for option in OPTIONS)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return UsageError(
        "option-unknown", f"there is no option {name}", hint=f"did you mean {close[0]}?" if close else _HELP
    )


def _name(command: Command) -> str:
    return "a conversation" if command is Command.TALK else f"--{command.value}"


def _where(option: Option) -> str:
    names = [_name(command) for command in Command if command in option.commands]
    return f"it belongs to {', '.join(names)}"


def _question(words: Sequence[str], prompt: Value) -> str | None:
    text = " ".join(words)
    if prompt is not None and text:
        raise UsageError("usage", "the question is given twice: as an argument and by --prompt")
    question = str(prompt) if prompt is not None else text or None
    if question is not None and not question.strip():
        raise UsageError("no-question", "the question is empty", hint="write it after the command")
    return question
