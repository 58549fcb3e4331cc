"""`--print-completion bash|zsh|fish`: completion of options and their values, derived from the option table."""

from __future__ import annotations

from launcher.errors import InternalError
from launcher.options.arguments import COMMANDS, SHELLS
from launcher.options.table import OPTIONS, Command, Option

PROGRAM = "mindnano-infer"
_CONTEXTS = ("4K", "8K", "16K", "32K", "64K", "128K", "256K")
# Options whose values are files or folders; the shell completes those itself.
_FILES = {"cacert", "model", "log"}
_FOLDERS = {"model-dir"}
# Commands whose own value is a folder, and the one whose value is a shell; the others need no more than their name.
_FOLDER_COMMANDS = (Command.VERIFY, Command.UNPACK)
_VALUED_COMMANDS = {*_FOLDER_COMMANDS, Command.CHECK, Command.PRINT_COMPLETION}
_PLAIN_COMMANDS = tuple(command for command, _ in COMMANDS if command not in _VALUED_COMMANDS)


def completion(shell: str) -> str:
    """The script for a shell, to be sourced by it or put where it looks for such scripts."""
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise InternalError("internal", f"no completion for {shell}")
    return writers[shell]()


def _values(option: Option) -> tuple[str, ...]:
    return _CONTEXTS if option.name == "context" else option.choices


def _flags() -> list[str]:
    words = ["--help", "--check=deep", *(f"--{command.value}" for command, _ in COMMANDS)]
    return words + [f"--{option.name}" for option in OPTIONS]


def _bash() -> str:
    cases = []
    for option in OPTIONS:
        if values := _values(option):
            cases.append(
                f'        --{option.name}) COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$word")); return ;;'
            )
        elif option.name in _FILES:
            cases.append(f'        --{option.name}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
        elif option.name in _FOLDERS:
            cases.append(f'        --{option.name}) COMPREPLY=($(compgen -d -- "$word")); return ;;')
        elif not option.is_flag:
            cases.append(f"        --{option.name}) return ;;")
    shells = " ".join(SHELLS)
    cases += [
        f'        --{command.value}) COMPREPLY=($(compgen -d -- "$word")); return ;;' for command in _FOLDER_COMMANDS
    ]
    lines = [
        f"# bash completion of {PROGRAM}",
        "_mindnano_infer() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "    COMPREPLY=()",
        '    case "$before" in',
        *cases,
        f'        --{Command.PRINT_COMPLETION.value}) COMPREPLY=($(compgen -W "{shells}" -- "$word")); return ;;',
        "    esac",
        '    case "$word" in',
        f'        -*) COMPREPLY=($(compgen -W "{" ".join(_flags())}" -- "$word")) ;;',
        "    esac",
        "}",
        f"complete -o filenames -F _mindnano_infer {PROGRAM}",
    ]
    return "\n".join(lines)


def _zsh() -> str:
    lines = [f"#compdef {PROGRAM}", "_arguments -S \\", "    '(- *)'{-h,--help}'[help]' \\"]
    lines.append("    '--check=-[check this machine]::depth:(deep)' \\")
    lines.append(f"    '--{Command.VERIFY.value}[verify a release]::folder:_files -/' \\")
    lines.append(f"    '--{Command.UNPACK.value}[unpack this program]:folder:_files -/' \\")
    lines.append(f"    '--{Command.PRINT_COMPLETION.value}[shell completion]:shell:({' '.join(SHELLS)})' \\")
    lines += [f"    '--{command.value}' \\" for command in _PLAIN_COMMANDS]
    for option in OPTIONS:
        if option.is_flag:
            action = ""
        elif values := _values(option):
            action = f":{option.name}:({' '.join(values)})"
        elif option.name in _FILES | _FOLDERS:
            action = f":{option.name}:_files{' -/' if option.name in _FOLDERS else ''}"
        else:
            action = f":{option.name}:"
        lines.append(f"    '--{option.name}{action}' \\")
    lines.append("    '*:question:'")
    return "\n".join(lines)


def _fish() -> str:
    start = f"complete -c {PROGRAM}"
    lines = [f"{start} -f", f"{start} -s h -l help", f"{start} -l check -a deep"]
    lines += [f"{start} -l {command.value} -a '(__fish_complete_directories)'" for command in _FOLDER_COMMANDS]
    lines.append(f"{start} -l {Command.PRINT_COMPLETION.value} -x -a '{' '.join(SHELLS)}'")
    lines += [f"{start} -l {command.value}" for command in _PLAIN_COMMANDS]
    for option in OPTIONS:
        if option.is_flag:
            lines.append(f"{start} -l {option.name}")
        elif values := _values(option):
            lines.append(f"{start} -l {option.name} -x -a '{' '.join(values)}'")
        elif option.name in _FILES:
            lines.append(f"{start} -l {option.name} -r -F")
        elif option.name in _FOLDERS:
            lines.append(f"{start} -l {option.name} -x -a '(__fish_complete_directories)'")
        else:
            lines.append(f"{start} -l {option.name} -x")
    return "\n".join(lines)
