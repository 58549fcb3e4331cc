"""Options as a frozen value: the command line merged with the configuration. Imports no more than argparse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.messages import Catalogue, Language, choose_language
from launcher.options.arguments import Arguments, read_arguments
from launcher.options.layers import Setting, config_files, merge
from launcher.options.table import ColorMode, Command, MlaBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
    """Sampling as the options set it; None leaves the package's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What only the server asks for. Times in seconds; `queue` is how many requests may wait; `thinking_budget` in
    tokens, None for no limit."""

    allow_lan: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    queue: int = 8
    thinking_budget: int | None = None
    request_timeout: float | None = None
    drain_timeout: float = 30.0
    sleep_idle_seconds: float = 0.0
    session_dir: Path | None = None
    session_dir_mib: int = 2048
    log_prompts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that was asked for. `context` and `max_tokens` in tokens; None means the default.

    `operand` is the value of the command's own flag: the folder of `--verify`, the source of `--download`, the shell of
    `--print-completion`. `threads` 0 means one per big core. `settings` has every option with its origin.
    """

    command: Command
    operand: str | None
    language: Language
    color: ColorMode
    json: bool
    model: Path | None
    demo: bool
    model_dir: Path | None
    question: str | None
    think: bool
    system: str
    sampling: SamplingOverrides
    max_tokens: int | None
    context: int | None
    kv_cache: str
    threads: int
    prefix_checkpoints: int | None
    session_cache_mib: int | None
    mtp: bool
    mla_backend: MlaBackend
    force: bool
    host: str
    port: int
    serving: ServerOptions
    sha256: str | None
    cacert: Path | None
    offline: bool
    assume_board: str | None
    report: bool
    strict: bool
    log: Path | None
    log_max_mib: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def check_deep(self) -> bool:
        """Whether `--check` may use the NPU and read the whole package."""
        return self.command is Command.CHECK and self.operand == "deep"


def language_of(words: Sequence[str], environ: Mapping[str, str]) -> Language:
    """The language to speak, known before anything else is parsed because help and errors speak it.

    Raises:
        UsageError: MINDNANO_LANG names no language.
    """
    return choose_language(_language_argument(words), environ)


def parse(words: Sequence[str], environ: Mapping[str, str], files: Sequence[Path] | None = None) -> Options:
    """The options that these words, this environment and these files mean.

    Args:
        words: the command line without the program's name.
        environ: the environment.
        files: configuration files, the weaker one first; None for those of this machine and user.

    Raises:
        UsageError: something is unknown, wrong or contradictory.
        SystemExit: `--help` was printed.
    """
    arguments = read_arguments(words, Catalogue(language_of(words, environ)))
    settings = merge(arguments.values, environ, config_files(environ) if files is None else files)
    value: dict[str, Any] = {name: setting.value for name, setting in settings.items()}
    language = choose_language(value["lang"], environ)
    _refuse_contradictions(arguments, settings)
    # A model that is named in this call outweighs `demo` in a file, and the other way round.
    model, demo = value["model"], value["demo"]
    if model is not None and demo:
        model, demo = (model, False) if _rank(settings["model"]) > _rank(settings["demo"]) else (None, True)
    return Options(
        command=arguments.command,
        operand=arguments.operand,
        language=language,
        color=ColorMode(value["color"]),
        json=value["json"],
        model=model,
        demo=demo,
        model_dir=value["model-dir"],
        question=arguments.question,
        think=value["think"] == "on",
        system=value["system"],
        sampling=SamplingOverrides(
            temperature=value["temperature"],
            top_p=value["top-p"],
            top_k=value["top-k"],
            min_p=value["min-p"],
            repetition_penalty=value["repeat-penalty"],
            seed=value["seed"],
        ),
        max_tokens=value["max-tokens"],
        context=value["context"],
        kv_cache=value["kv-cache"],
        threads=value["threads"] or 0,
        prefix_checkpoints=value["prefix-checkpoints"],
        session_cache_mib=value["session-cache-mib"],
        mtp=value["mtp"],
        mla_backend=MlaBackend(value["mla-backend"]),
        force=value["force"],
        host=value["host"],
        port=value["port"],
        serving=ServerOptions(
            allow_lan=value["allow-lan"],
            api_keys=value["api-key"],
            api_key_file=value["api-key-file"],
            allow_hosts=value["allow-host"],
            cors_origins=value["cors-origin"],
            tls_cert=value["tls-cert"],
            tls_key=value["tls-key"],
            queue=value["queue"],
            thinking_budget=value["thinking-budget"],
            request_timeout=value["request-timeout"],
            drain_timeout=value["drain-timeout"],
            sleep_idle_seconds=value["sleep-idle-seconds"],
            session_dir=value["session-dir"],
            session_dir_mib=value["session-dir-mib"],
            log_prompts=value["log-prompts"],
        ),
        sha256=value["sha256"],
        cacert=value["cacert"],
        offline=value["offline"],
        assume_board=value["assume-board"],
        report=value["report"],
        strict=value["strict"],
        log=value["log"],
        log_max_mib=value["log-max-mib"],
        settings=settings,
    )


def _rank(setting: Setting) -> int:
    if setting.origin in {"default", "command line"}:
        return 0 if setting.origin == "default" else 3
    return 2 if setting.origin.startswith("MINDNANO_") else 1


def _refuse_contradictions(arguments: Arguments, settings: Mapping[str, Setting]) -> None:
    given = arguments.values
    if given.get("demo") and "model" in given:
        raise UsageError("usage", "--demo and --model exclude each other")
    if given.get("json") and given.get("report"):
        raise UsageError("usage", "--json and --report exclude each other")
    if arguments.command is Command.PRINT_COMPLETION and arguments.operand is None:
        raise UsageError("usage", "--print-completion needs a shell", hint="give bash, zsh or fish")


def _language_argument(words: Sequence[str]) -> str | None:
    """The value of `--lang`, read before the parser exists because its help and errors speak that language."""
    known = {language.value for language in Language}
    for index, word in enumerate(words):
        if word == "--":
            break
        value = word.partition("=")[2] if word.startswith("--lang=") else ""
        if word == "--lang" and index + 1 < len(words):
            value = words[index + 1]
        if value in known:
            return value
    return None
