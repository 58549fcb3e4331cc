"""The loaded model with its scheduler and its sessions: the one place where the server's parts meet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from launcher import __version__
from launcher.engine import Package, Session
from launcher.engine_export import read_export
from launcher.engine_sampling import Sampler, Utf8Stream
from launcher.engine_types import KvType, Sampling, Section
from launcher.errors import InternalError, MindnanoError
from launcher.model import OpenModel
from launcher.options.parse import Options
from launcher.server.constraint import GrammarFactory
from launcher.server.model_memory import ModelMemory
from launcher.server.protocol.limits import MAX_BIAS
from launcher.server.request import GenerationRequest
from launcher.server.scheduler import Scheduler
from launcher.server.served import ServedModel
from launcher.server.session_files import SessionFiles
from launcher.server.session_format import Origin
from launcher.server.session_state import Inspected, StateRules
from launcher.server.sessions import SessionStore
from launcher.server.sleeping import Note, Sleeper, Sleepless
from launcher.system import SystemView

RELEASED_ID: Final = "mindnano-ling3-tiny"
_RELEASED_NAMES: Final = frozenset({"ling-3.0-tiny"})
_RELEASED_REPOSITORY: Final = "inclusionAI/Ling-3.0-tiny"
_FINGERPRINT_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What runs requests, and what they may be."""

    model: OpenModel
    served: ServedModel
    scheduler: Scheduler
    store: SessionStore
    sleeper: Sleeper | Sleepless
    rules: StateRules


@contextmanager
def open_generation(
    model: OpenModel,
    options: Options,
    grammar: GrammarFactory,
    *,
    created: int,
    report: Callable[[MindnanoError], None],
    note: Note = lambda _event, _facts: None,
    system: SystemView | None = None,
) -> Iterator[Generation]:
    """Starts the generation thread; at the end it is stopped without waiting for anything.

    Args:
        model: open and loaded.
        options: the options.
        grammar: makes the constraints of replies.
        created: now, in seconds since 1970.
        report: told what is wrong with saved sessions, and what failed without a request that could be told.
        note: takes what the log is to say of the server's sleep.
        system: the machine; None for this one.

    Raises:
        UsageError, BusyError: the folder of sessions cannot be used.
    """
    origin = _origin(model, options)
    files = _session_files(origin, options, report)
    store = SessionStore(model.session, budget=model.session.options.session_cache_bytes, files=files)
    package = model.package
    sleeper = _sleeper(model, options, store, note, system or SystemView())
    stop_ids = frozenset(package.config.stop_ids)
    scheduler = Scheduler(
        engine=model.session,
        store=store,
        new_sampler=lambda request, choice: ChoiceSampler(package, model.session, request, choice),
        text=package,
        new_stream=lambda: Utf8Stream(package.library),
        stop_ids=stop_ids,
        stop_texts=tuple(package.token_bytes(token).decode(errors="replace") for token in sorted(stop_ids)),
        limit=options.serving.queue,
        upkeep_failed=lambda error: report(_upkeep_failed(error)),
        sleeper=sleeper,
    )
    scheduler.start()
    try:
        yield Generation(
            model=model,
            served=_served(model, options, grammar, created=created, fingerprint=fingerprint(package)),
            scheduler=scheduler,
            store=store,
            sleeper=sleeper,
            rules=StateRules(
                origin=origin,
                context=model.session.options.context,
                budget=model.session.options.session_cache_bytes,
                inspect=lambda memory: _inspected(package, memory),
            ),
        )
    finally:
        scheduler.close(drain=0)


def _upkeep_failed(error: Exception) -> MindnanoError:
    """What no request can be told of; the requests themselves are in the server's journal."""
    return InternalError(
        "internal",
        f"looking after the kept conversations failed: {error!r}",
        hint="please report this with the log",
    )


class ChoiceSampler:
    """Picks the tokens of one choice."""

    def __init__(self, package: Package, session: Session, request: GenerationRequest, choice: int) -> None:
        """Makes a sampler that starts with the request's seed + `choice`."""
        self._package = package
        self._session = session
        self._sampler = Sampler(package, _seeded(request, choice))
        self._biases = dict(request.logit_bias)
        if self._biases:
            self._sampler.bias(self._biases)

    def pick(self, reply_length: int, allowed: object) -> int:
        """See `launcher.server.run_ports.SamplerPort`."""
        return self._sampler.sample(self._session, reply_length=reply_length, allowed=allowed)

    def bar(self, token: int) -> None:
        """See `launcher.server.run_ports.SamplerPort`."""
        self._biases[token] = -MAX_BIAS
        self._sampler.bias(self._biases)

    def log_probabilities(self, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        """See `launcher.server.run_ports.SamplerPort`."""
        return self._package.log_probabilities(self._session, token, top)

    def close(self) -> None:
        """Frees it."""
        self._sampler.close()


def _seeded(request: GenerationRequest, choice: int) -> Sampling:
    return replace(request.sampling, seed=(request.sampling.seed + choice) % (1 << 64))


def fingerprint(package: Package) -> str:
    """Tells engine and package apart from others."""
    digest = hashlib.sha256(__version__.encode() + b"\0" + package.identity())
    return f"fp_{digest.hexdigest()[:_FINGERPRINT_DIGITS]}"


def served_id(name: str, metadata: Mapping[str, object]) -> str:
    """The model's name in requests: one that is fixed for the released model, else the package's own."""
    source = metadata.get("source")
    repository = source.get("repository") if isinstance(source, Mapping) else None
    if repository == _RELEASED_REPOSITORY or name.lower() in _RELEASED_NAMES:
        return RELEASED_ID
    return name


def _served(
    model: OpenModel, options: Options, grammar: GrammarFactory, *, created: int, fingerprint: str
) -> ServedModel:
    package, wanted = model.package, model.session.options
    return ServedModel(
        id=served_id(model.name, model.metadata),
        created=created,
        text=package,
        template=model.template,
        sampling=model.sampling,
        seed=options.sampling.seed,
        thinking=options.think,
        thinking_budget=options.serving.thinking_budget,
        max_tokens=options.max_tokens,
        timeout=options.serving.request_timeout,
        context=wanted.context,
        token_count=package.config.token_count,
        stop_ids=frozenset(package.config.stop_ids),
        checkpoints=wanted.checkpoints,
        fingerprint=fingerprint,
        grammar=grammar,
        facts={
            "name": model.name,
            "context": wanted.context,
            "kv_cache": wanted.kv_type.label,
            "mtp": options.mtp,
            "has_mtp_layer": package.has_mtp,
        },
    )


def _origin(model: OpenModel, options: Options) -> Origin:
    wanted = model.session.options
    template = model.package.section(Section.CHAT_TEMPLATE) or b""
    return Origin(
        identity=model.package.identity(),
        template_sha256=hashlib.sha256(template).digest(),
        kv=_kv(wanted.kv_type, mtp=options.mtp),
        engine=f"mindnano-infer {__version__}",
    )


def _kv(kv_type: KvType, *, mtp: bool) -> str:
    return f"{kv_type.label}{'+mtp' if mtp else ''}"


def _inspected(package: Package, memory: Any) -> Inspected:
    found = read_export(package.library, memory)
    return Inspected(
        identity=found.identity,
        kv=_kv(found.kv_type, mtp=found.mtp),
        ids=found.tokens,
        checkpoints=found.checkpoints,
    )


def _sleeper(
    model: OpenModel, options: Options, store: SessionStore, note: Note, system: SystemView
) -> Sleeper | Sleepless:
    seconds = options.serving.sleep_idle_seconds
    if seconds == 0:
        return Sleepless()
    memory = ModelMemory(model, system, force=options.force)
    return Sleeper(seconds=seconds, memory=memory, put_away=store.put_to_sleep, note=note)


def _session_files(origin: Origin, options: Options, report: Callable[[MindnanoError], None]) -> SessionFiles | None:
    folder = options.serving.session_dir
    if folder is None:
        return None
    return SessionFiles(folder, limit_bytes=options.serving.session_dir_mib << 20, origin=origin, report=report)
