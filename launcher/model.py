"""From options to an open package, its template, its sampling defaults and a session that fits."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.contexts import DEFAULT_CHECKPOINTS, ContextTable, build_table, require_fit
from launcher.conversation import Conversation, Ports
from launcher.download.model_store import find_model, model_folder, model_missing
from launcher.engine import Engine, Package, Sampler, Session, Utf8Stream
from launcher.engine_types import EngineOptions, KvType, ModelConfig, Sampling, Section, SessionOptions
from launcher.errors import PackageError, UsageError
from launcher.event_log import EventLog
from launcher.integrity.verify import require_verified
from launcher.loading import LoadedMemory, load, measure
from launcher.memory import Memory, read_memory
from launcher.memory_plan import ProcessPlan, Runtime, Usage, plan_process, read_usage
from launcher.messages import Catalogue
from launcher.options.parse import Options, SamplingOverrides
from launcher.options.table import Command
from launcher.payload.carried import demo_package
from launcher.progress import format_bytes
from launcher.system import SystemView
from launcher.template import ChatTemplate
from launcher.terminal import is_terminal

DEMO_VARIABLE = "MINDNANO_DEMO_PACKAGE"
DEFAULT_CONTEXT = 8192
_KV_TYPES = {kind.label: kind for kind in KvType}


# Only these have a use for the MTP layer and for a cache of whole sessions; a chat has one session and drafts nothing.
_WITHOUT_EXTRAS = frozenset({Command.TALK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """An open model with a conversation, and the facts that the terminal shows. `usage` measures this process."""

    name: str
    conversation: Conversation
    context: int
    threads: int
    simd: str
    allocated: int
    memory: LoadedMemory
    usage: Callable[[], Usage | None]
    log: EventLog


def package_path(options: Options, environ: Mapping[str, str]) -> Path:
    """The package that the options name, or the one that lies where models are.

    Raises:
        PackageError: there is no model, or the built-in one has not been packed.
        UsageError: there are several models and none is named.
    """
    if not options.demo:
        found = find_model(options, environ)
        if found is None:
            raise model_missing(model_folder(options, environ))
        return found
    named = environ.get(DEMO_VARIABLE, "")
    path = Path(named) if named else Path(__file__).resolve().parent.parent / "build" / "demo" / "demo.l3r"
    if not path.is_file():
        raise PackageError(
            "demo-missing",
            f"the built-in model is not at {path}",
            hint=f"run scripts/run once, which packs it, or point {DEMO_VARIABLE} at a package",
        )
    return path


def open_package(options: Options, environ: Mapping[str, str]) -> Package:
    """The package that the options name, open; the model inside the portable program is opened where it lies.

    Raises:
        EngineError, PackageError, UsageError: as `package_path`, or it does not open.
    """
    carried = _carried(options, environ)
    if carried is None:
        return Package(package_path(options, environ))
    path, window = carried
    return Package(Path(path), window=window)


def _open_verified(options: Options, environ: Mapping[str, str], texts: Catalogue) -> Package:
    """The package, compared with the release that it lies in; a stamp of an earlier time saves hashing it again."""
    if _carried(options, environ) is None:
        path = package_path(options, environ)
        require_verified(path, environ, texts=texts)
    return open_package(options, environ)


def _carried(options: Options, environ: Mapping[str, str]) -> tuple[str, tuple[int, int]] | None:
    return demo_package() if options.demo and not environ.get(DEMO_VARIABLE) else None


def metadata_of(package: Package) -> dict[str, object]:
    """The metadata section.

    Raises:
        PackageError: it is missing or no JSON object.
    """
    data = package.section(Section.METADATA)
    try:
        found = json.loads((data or b"").decode())
    except (ValueError, RecursionError) as error:
        raise PackageError("package-metadata", f"the metadata of {package.path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PackageError("package-metadata", f"the metadata of {package.path} is not a JSON object")
    return found


def model_name(metadata: Mapping[str, object], path: Path) -> str:
    """The model's name, or the file's where the metadata has none."""
    name = metadata.get("name")
    return name if isinstance(name, str) and name else path.stem


def template_of(package: Package, metadata: Mapping[str, object]) -> ChatTemplate:
    """The package's chat template with its special tokens.

    Raises:
        PackageError: there is none, or it is not valid.
    """
    source = package.section(Section.CHAT_TEMPLATE)
    if source is None:
        raise PackageError(
            "package-no-template",
            f"{package.path} holds no chat template",
            hint="pack the model again from a checkpoint that has chat_template.jinja",
        )
    listed = metadata.get("special_tokens")
    tokens = listed if isinstance(listed, dict) else {}
    special = {str(name): text for name, text in tokens.items() if isinstance(text, str)}
    try:
        return ChatTemplate(source.decode(), special_tokens=special)
    except UnicodeDecodeError as error:
        raise PackageError("template-invalid", f"the chat template is not UTF-8: {error}") from error


def sampling_for(metadata: Mapping[str, object], overrides: SamplingOverrides, *, greedy: bool) -> Sampling:
    """Sampling from the package's defaults and the command line; `greedy` makes temperature 0 the default.

    Raises:
        PackageError: a default of the package is out of range.
    """
    listed = metadata.get("generation")
    defaults = listed if isinstance(listed, dict) else {}
    temperature = 0.0 if greedy else _default(defaults, "temperature", 1.0, low=0, high=100)
    top_p = _default(defaults, "top_p", 1.0, low=1e-6, high=1)
    top_k = int(_default(defaults, "top_k", 0, low=0, high=1 << 30))
    return Sampling(
        temperature=temperature if overrides.temperature is None else overrides.temperature,
        top_p=top_p if overrides.top_p is None else overrides.top_p,
        top_k=top_k if overrides.top_k is None else overrides.top_k,
        min_p=overrides.min_p or 0.0,
        repetition_penalty=1.0 if overrides.repetition_penalty is None else overrides.repetition_penalty,
        seed=secrets.randbits(64) if overrides.seed is None else overrides.seed,
    )


def session_options(options: Options, config: ModelConfig) -> SessionOptions:
    """The session that the options ask for.

    Raises:
        UsageError: the context is larger than the package allows.
    """
    usual = min(DEFAULT_CONTEXT, config.max_position, config.max_context)
    context = usual if options.context is None else options.context
    if context > config.max_context:
        raise UsageError(
            "context-too-large",
            f"a context of {context} tokens was asked for, the package allows {config.max_context}",
            hint=f"use --context {config.max_context} or less",
        )
    return SessionOptions(
        context=context,
        kv_type=kv_type(options),
        checkpoints=_checkpoints(options),
        session_cache_bytes=_session_cache(options),
    )


def engine_options(options: Options) -> EngineOptions:
    """The engine that the options ask for."""
    return EngineOptions(threads=options.threads, mtp=options.mtp and options.command not in _WITHOUT_EXTRAS)


def _checkpoints(options: Options) -> int:
    return DEFAULT_CHECKPOINTS if options.prefix_checkpoints is None else options.prefix_checkpoints


def _session_cache(options: Options) -> int:
    return 0 if options.command in _WITHOUT_EXTRAS else (options.session_cache_mib or 0) << 20


def kv_type(options: Options) -> KvType:
    """The cache type that the options ask for."""
    return _KV_TYPES[options.kv_cache]


def context_table(package: Package, name: str, options: Options, system: SystemView) -> ContextTable:
    """What every context costs with these options, against the memory of this machine."""
    return build_table(
        package,
        name,
        engine_options(options),
        kv_type(options),
        read_memory(system),
        checkpoints=_checkpoints(options),
        session_cache=_session_cache(options),
        runtime=Runtime.measured(system, complete=False),
    )


def process_plan(package: Package, options: Options, system: SystemView) -> ProcessPlan:
    """What a chat with these options would need, term by term.

    Raises:
        UsageError, PackageError: options that the package or the engine cannot serve.
    """
    wanted = session_options(options, package.config)
    return plan_process(package, engine_options(options), wanted, Runtime.measured(system, complete=False))


@contextmanager
def open_talk(options: Options, environ: Mapping[str, str], system: SystemView) -> Iterator[Talk]:
    """Opens everything for a conversation, loads the weights and closes it all afterwards.

    Raises:
        EngineError, PackageError, ResourceError, UsageError: what is missing or does not fit.
    """
    if options.question is None and is_terminal(sys.stdin):
        import launcher.line_editor  # noqa: F401  (a chat needs it, and the plan is to see it)
    runtime = Runtime.measured(system, complete=True)
    texts = Catalogue(options.language)

    def say_lost(reason: str) -> None:
        print(texts("chat-log-lost", path=options.log, reason=reason), file=sys.stderr)

    with EventLog(options.log, lost=say_lost) as log, _open_verified(options, environ, texts) as package:
        metadata = metadata_of(package)
        template = template_of(package, metadata)
        sampling = sampling_for(metadata, options.sampling, greedy=options.demo)
        wanted = session_options(options, package.config)
        memory = read_memory(system)
        if not options.force:
            require_fit(package, engine_options(options), wanted, memory, runtime)
        plan = plan_process(package, engine_options(options), wanted, runtime)
        with Engine(package, engine_options(options)) as engine, Session(engine, wanted) as session:
            preloaded = _load(engine, plan, memory, texts)
            samplers: list[Sampler] = []

            def new_sampler() -> _BoundSampler:
                while samplers:
                    samplers.pop().close()
                samplers.append(Sampler(package, sampling))
                return _BoundSampler(samplers[0], session)

            conversation = Conversation(
                Ports(
                    text=package,
                    session=session,
                    new_stream=lambda: Utf8Stream(package.library),
                    new_sampler=new_sampler,
                    stop_ids=frozenset(package.config.stop_ids),
                ),
                template,
                system=options.system,
                thinking=options.think,
                max_tokens=options.max_tokens,
            )
            loaded = measure(system, plan, preloaded=preloaded)
            name = model_name(metadata, package.path)
            facts = {
                "model": name,
                "context": wanted.context,
                "kv_cache": wanted.kv_type.label,
                "prefix_checkpoints": wanted.checkpoints,
                "threads": engine.threads,
                "simd": engine.simd,
            }
            log.write("loaded", facts | loaded.facts())
            yield Talk(
                name=name,
                conversation=conversation,
                context=wanted.context,
                threads=engine.threads,
                simd=engine.simd,
                allocated=session.allocated,
                memory=loaded,
                usage=lambda: read_usage(system),
                log=log,
            )


def _load(engine: Engine, plan: ProcessPlan, memory: Memory | None, texts: Catalogue) -> bool:
    """Loads the weights, unless they would push each other out again; whether it did."""
    if memory is not None and plan.mapped > memory.available:
        facts = {"weights": format_bytes(plan.mapped), "available": format_bytes(memory.available)}
        print(texts("chat-not-loaded", **facts), file=sys.stderr)
        return False
    load(engine, texts, sys.stderr)
    return True


class _BoundSampler:
    """A sampler that always reads the same session."""

    def __init__(self, sampler: Sampler, session: Session) -> None:
        self._sampler = sampler
        self._session = session

    def __call__(self) -> int:
        return self._sampler.sample(self._session)


def _default(defaults: Mapping[str, object], name: str, fallback: float, *, low: float, high: float) -> float:
    value = defaults.get(name)
    if value is None:
        return fallback
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise PackageError(
            "package-metadata", f"the package's default {name} is {value!r}, expected {low:g} to {high:g}"
        )
    return float(value) if math.isfinite(value) else fallback
