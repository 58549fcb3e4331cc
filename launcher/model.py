"""From options to an open package, its template, its sampling defaults, an engine and a session that fits."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.contexts import DEFAULT_CHECKPOINTS, ContextTable, build_table, require_fit
from launcher.download.model_store import find_model, model_folder, model_missing
from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, ModelConfig, Sampling, Section, SessionOptions
from launcher.errors import PackageError, UsageError
from launcher.event_log import EventLog
from launcher.integrity.verify import require_verified
from launcher.loading import LoadedMemory, load, measure
from launcher.memory import Memory, read_memory
from launcher.memory_plan import ProcessPlan, Runtime, plan_process
from launcher.messages import Catalogue
from launcher.options.parse import Options, SamplingOverrides
from launcher.options.table import Command
from launcher.payload.carried import demo_package
from launcher.progress import format_bytes
from launcher.system import SystemView
from launcher.template import ChatTemplate

DEMO_VARIABLE = "MINDNANO_DEMO_PACKAGE"
DEFAULT_CONTEXT = 8192
_CACHE_STEPS_MIB = (512, 256, 128)
_KV_TYPES = {kind.label: kind for kind in KvType}


# Only these have a use for the MTP layer and for a cache of whole sessions; a chat has one session and drafts nothing.
_WITHOUT_EXTRAS = frozenset({Command.TALK})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """An open package with an engine and a session that fits, its weights loaded. `sampling` holds the defaults."""

    name: str
    metadata: Mapping[str, object]
    package: Package
    template: ChatTemplate
    sampling: Sampling
    engine: Engine
    session: Session
    memory: LoadedMemory

    def facts(self) -> dict[str, object]:
        """For the log."""
        wanted = self.session.options
        return {
            "model": self.name,
            "context": wanted.context,
            "kv_cache": wanted.kv_type.label,
            "prefix_checkpoints": wanted.checkpoints,
            "threads": self.engine.threads,
            "simd": self.engine.simd,
        }


@contextmanager
def open_model(
    options: Options,
    environ: Mapping[str, str],
    system: SystemView,
    texts: Catalogue,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    prepare_grammar: Callable[[Package], None] | None = None,
) -> Iterator[OpenModel]:
    """Opens the package verified, loads the weights and closes it all afterwards.

    What the program itself needs must be imported before, so that the memory plan sees it.

    Args:
        is_stopped: asked while the weights are loaded.
        prepare_grammar: makes ready what constrained replies need, which the plan counts; None where there are none.

    Raises:
        EngineError, PackageError, ResourceError, UsageError: what is missing or does not fit.
        Cancelled: `is_stopped` said so.
    """
    runtime = replace(Runtime.measured(system, complete=True), constrains=prepare_grammar is not None)
    with _open_verified(options, environ, texts) as package:
        metadata = metadata_of(package)
        template = template_of(package, metadata)
        sampling = sampling_for(metadata, options.sampling, greedy=options.demo)
        wanted = session_options(options, package.config)
        memory = read_memory(system)
        if options.command not in _WITHOUT_EXTRAS and options.session_cache_mib is None:
            wanted = _with_largest_cache(package, options, wanted, memory, runtime)
        if not options.force:
            require_fit(package, engine_options(options), wanted, memory, runtime)
        plan = plan_process(package, engine_options(options), wanted, runtime)
        with Engine(package, engine_options(options)) as engine, Session(engine, wanted) as session:
            preloaded = _load(engine, plan, memory, texts, is_stopped)
            if prepare_grammar is not None:
                prepare_grammar(package)
            yield OpenModel(
                name=model_name(metadata, package.path),
                metadata=metadata,
                package=package,
                template=template,
                sampling=sampling,
                engine=engine,
                session=session,
                memory=measure(system, plan, preloaded=preloaded),
            )


def _with_largest_cache(
    package: Package, options: Options, wanted: SessionOptions, memory: Memory | None, runtime: Runtime
) -> SessionOptions:
    """The largest of the usual budgets for other conversations that still fits beside everything else."""
    for mib in _CACHE_STEPS_MIB:
        larger = replace(wanted, session_cache_bytes=mib << 20)
        full = plan_process(package, engine_options(options), larger, runtime).full
        if memory is None or full <= memory.available:
            return larger
    return wanted


def open_log(options: Options, texts: Catalogue) -> EventLog:
    """The log that the options ask for; its end is told on stderr.

    Raises:
        UsageError: it cannot be written.
    """

    def say_lost(reason: str) -> None:
        print(texts("chat-log-lost", path=options.log, reason=reason), file=sys.stderr)

    private = options.serving.log_prompts
    return EventLog(options.log, max_bytes=options.log_max_mib << 20, private=private, lost=say_lost)


def _load(
    engine: Engine, plan: ProcessPlan, memory: Memory | None, texts: Catalogue, is_stopped: Callable[[], bool]
) -> bool:
    """Loads the weights, unless they would push each other out again; whether it did."""
    if memory is not None and plan.mapped > memory.available:
        facts = {"weights": format_bytes(plan.mapped), "available": format_bytes(memory.available)}
        print(texts("chat-not-loaded", **facts), file=sys.stderr)
        return False
    load(engine, texts, sys.stderr, is_stopped=is_stopped)
    return True


def _default(defaults: Mapping[str, object], name: str, fallback: float, *, low: float, high: float) -> float:
    value = defaults.get(name)
    if value is None:
        return fallback
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise PackageError(
            "package-metadata", f"the package's default {name} is {value!r}, expected {low:g} to {high:g}"
        )
    return float(value) if math.isfinite(value) else fallback
