"""Everything that a conversation in the terminal needs, open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from launcher.conversation import Conversation, Ports
from launcher.engine import Session
from launcher.engine_sampling import Sampler, Utf8Stream
from launcher.event_log import EventLog
from launcher.loading import LoadedMemory
from launcher.memory_plan import Usage, read_usage
from launcher.messages import Catalogue
from launcher.model import open_log, open_model
from launcher.options.parse import Options
from launcher.system import SystemView
from launcher.terminal import is_terminal


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


@contextmanager
def open_talk(options: Options, environ: Mapping[str, str], system: SystemView) -> Iterator[Talk]:
    """Opens everything for a conversation, loads the weights and closes it all afterwards.

    Raises:
        EngineError, PackageError, ResourceError, UsageError: what is missing or does not fit.
    """
    if options.question is None and is_terminal(sys.stdin):
        import launcher.line_editor  # noqa: F401  (a chat needs it, and the plan is to see it)
    texts = Catalogue(options.language)
    with open_log(options, texts) as log, open_model(options, environ, system, texts) as model:
        package, session = model.package, model.session
        samplers: list[Sampler] = []

        def new_sampler() -> _BoundSampler:
            while samplers:
                samplers.pop().close()
            samplers.append(Sampler(package, model.sampling))
            return _BoundSampler(samplers[0], session)

        conversation = Conversation(
            Ports(
                text=package,
                session=session,
                new_stream=lambda: Utf8Stream(package.library),
                new_sampler=new_sampler,
                stop_ids=frozenset(package.config.stop_ids),
            ),
            model.template,
            system=options.system,
            thinking=options.think,
            max_tokens=options.max_tokens,
        )
        log.write("loaded", model.facts() | model.memory.facts())
        yield Talk(
            name=model.name,
            conversation=conversation,
            context=session.context,
            threads=model.engine.threads,
            simd=model.engine.simd,
            allocated=session.allocated,
            memory=model.memory,
            usage=lambda: read_usage(system),
            log=log,
        )


class _BoundSampler:
    """A sampler that always reads the same session."""

    def __init__(self, sampler: Sampler, session: Session) -> None:
        self._sampler = sampler
        self._session = session

    def __call__(self) -> int:
        return self._sampler.sample(self._session)
