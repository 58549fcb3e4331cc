"""From options to an open package, its template, its sampling defaults and a session that fits."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.contexts import require_fit
from launcher.conversation import Conversation, Ports
from launcher.engine import Engine, Package, Sampler, Session, Utf8Stream
from launcher.engine_types import EngineOptions, KvType, ModelConfig, Sampling, Section, SessionOptions
from launcher.errors import PackageError, UsageError
from launcher.memory import read_memory
from launcher.options import Options, SamplingOverrides
from launcher.system import SystemView
from launcher.template import ChatTemplate

DEMO_VARIABLE = "MINDNANO_DEMO_PACKAGE"
DEFAULT_CONTEXT = 8192
_KV_TYPES = {kind.label: kind for kind in KvType}


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """An open model with a conversation, and the facts that the terminal shows."""

    name: str
    conversation: Conversation
    context: int
    threads: int
    simd: str
    allocated: int


def package_path(options: Options, environ: Mapping[str, str]) -> Path:
    """The package that the options name.

    Raises:
        PackageError: the built-in model has not been packed.
    """
    if options.model is not None:
        return options.model
    named = environ.get(DEMO_VARIABLE, "")
    path = Path(named) if named else Path(__file__).resolve().parent.parent / "build" / "demo" / "demo.l3r"
    if not path.is_file():
        raise PackageError(
            "demo-missing",
            f"the built-in model is not at {path}",
            hint=f"run scripts/run once, which packs it, or point {DEMO_VARIABLE} at a package",
        )
    return path


def metadata_of(package: Package) -> dict[str, object]:
    """The metadata section.

    Raises:
        PackageError: it is missing or no JSON object.
    """
    data = package.section(Section.METADATA)
    try:
        found = json.loads((data or b"").decode())
    except ValueError as error:
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
    return SessionOptions(context=context, kv_type=kv_type(options))


def engine_options(options: Options) -> EngineOptions:
    """The engine that the options ask for."""
    return EngineOptions(threads=options.threads)


def kv_type(options: Options) -> KvType:
    """The cache type that the options ask for."""
    return _KV_TYPES[options.kv_cache]


@contextmanager
def open_talk(options: Options, environ: Mapping[str, str], system: SystemView) -> Iterator[Talk]:
    """Opens everything for a conversation and closes it afterwards.

    Raises:
        EngineError, PackageError, ResourceError, UsageError: what is missing or does not fit.
    """
    with Package(package_path(options, environ)) as package:
        metadata = metadata_of(package)
        template = template_of(package, metadata)
        sampling = sampling_for(metadata, options.sampling, greedy=options.demo)
        wanted = session_options(options, package.config)
        if not options.force:
            require_fit(package, engine_options(options), wanted, read_memory(system))
        with Engine(package, engine_options(options)) as engine, Session(engine, wanted) as session:
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
            yield Talk(
                name=model_name(metadata, package.path),
                conversation=conversation,
                context=wanted.context,
                threads=engine.threads,
                simd=engine.simd,
                allocated=session.allocated,
            )


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
