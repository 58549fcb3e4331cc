"""`--no-console`: the server from its options to its end.

The socket answers before the model is there, so that whoever watches the process sees it load. Loading and everything
that closes runs in threads; the main thread runs the event loop and takes the signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from ssl import SSLContext
from typing import Any, Final, NoReturn

from launcher import __version__
from launcher.download.first_start import first_start
from launcher.download.model_store import find_model
from launcher.engine import Package
from launcher.errors import (
    EXIT_SIGHUP,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    InternalError,
    MindnanoError,
    RequestError,
    resource_error,
)
from launcher.event_log import EventLog
from launcher.memory_plan import read_usage
from launcher.messages import Catalogue
from launcher.model import open_log, open_model
from launcher.options.parse import Options
from launcher.server.app import Application, Phase, Services, State
from launcher.server.backend import LoadedBackend
from launcher.server.backlog import SPARE, Backlog
from launcher.server.constraint import GrammarFactory
from launcher.server.generation import open_generation
from launcher.server.guidance import load_library
from launcher.server.journal import Journal
from launcher.server.listening import Address, find_address, listening, require_permission
from launcher.server.notify import notify
from launcher.server.openapi import openapi_document
from launcher.server.prometheus import ServerMetrics
from launcher.server.routes_generation import generation_routes
from launcher.server.routes_information import OPEN_PATHS, information_routes
from launcher.server.routes_state import state_routes
from launcher.server.security import Access, Keyring, own_names, read_keys
from launcher.server.session_files import require_folder
from launcher.server.session_room import conversation_bytes, require_room_to_save
from launcher.server.tls import server_context
from launcher.server.web import web_server
from launcher.system import SystemView

_SIGNALS: Final = {
    signal.SIGINT: EXIT_SIGINT,
    signal.SIGTERM: EXIT_SIGTERM,
    signal.SIGHUP: EXIT_SIGHUP,
}
_LAST_LOADING: Final = 3.0  # seconds that loading gets to notice that it is not wanted any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is known before the model is looked at."""

    address: Address
    access: Access
    tls: SSLContext | None


def run_serve(options: Options, environ: Mapping[str, str], texts: Catalogue) -> int:
    """Serves until a signal comes, and returns its exit code.

    Raises:
        MindnanoError: the options, the address or the model cannot be used.
    """
    plan = _plan(options, texts)
    system = SystemView()
    if not options.demo and find_model(options, environ) is None:
        options = replace(options, model=first_start(options, environ, texts, system))
    with open_log(options, texts) as log, listening(plan.address, group=options.serving.allow_lan) as bound:
        return Server(options, environ, texts, system, plan=plan, log=log).run(bound)


def _plan(options: Options, texts: Catalogue) -> Plan:
    address = find_address(options)
    words, is_public = read_keys(options.serving)
    require_permission(address, options, keys=bool(words))
    tls = server_context(options.serving)
    if options.session_cache_mib == 0:
        require_room_to_save(options, 0)
    if options.serving.session_dir is not None:
        require_folder(options.serving.session_dir)
    if is_public:
        _say(texts("server-key-file-public", path=options.serving.api_key_file))
    if not address.is_loopback and not words:
        _say(texts("server-lan-open", host=options.host))
    # A page that points a name of its own at this machine has no key.
    hosts = None if address.path is not None or words else own_names(options.serving)
    origins = frozenset(origin.lower() for origin in options.serving.cors_origins)
    return Plan(address=address, access=Access(keys=Keyring(words), hosts=hosts, origins=origins), tls=tls)


class Server:
    """One run."""

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        texts: Catalogue,
        system: SystemView,
        *,
        plan: Plan,
        log: EventLog,
    ) -> None:
        self._options = options
        self._environ = environ
        self._texts = texts
        self._system = system
        self._plan = plan
        self._state = State()
        self._resident = lambda: None if (usage := read_usage(system)) is None else usage.resident
        self._metrics = ServerMetrics(version=__version__, resident=self._resident)
        self._journal = Journal(log, self._metrics, prompts=options.serving.log_prompts)
        self._stop = threading.Event()
        self._code = 0

    def run(self, bound: socket.socket) -> int:
        """Answers on the socket until a signal comes; returns the exit code.

        Raises:
            MindnanoError: the model does not load.
        """
        try:
            return asyncio.run(self._run(bound))
        finally:
            self._journal.close()

    async def _run(self, bound: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        backlog = Backlog(self._options.serving.queue + SPARE)
        services = Services(state=self._state, journal=self._journal, backlog=backlog)
        routes = [
            *generation_routes(services),
            *state_routes(services),
            *information_routes(services, lambda: openapi_document(__version__)),
        ]
        name = socket.gethostname()
        app = Application(services, self._plan.access, routes, open_paths=OPEN_PATHS, served_by=name)
        web = web_server(app, tls=self._plan.tls)
        with _signals(loop, lambda number: self._told(number, ended)):
            answering = asyncio.create_task(web.serve(sockets=[bound]))
            opened = ExitStack()
            try:
                return await self._load_and_serve(loop, opened, ended)
            finally:
                web.should_exit = True
                try:
                    with suppress(asyncio.CancelledError):
                        await answering
                finally:
                    await loop.run_in_executor(None, self._close, app, opened)

    def _close(self, app: Application, opened: ExitStack) -> None:
        """In a thread of its own: the model last, because answers and what the workers do need it to their end."""
        app.close()
        opened.close()
        self._journal.write("stopped", {"exit_code": self._code})

    async def _load_and_serve(self, loop: asyncio.AbstractEventLoop, opened: ExitStack, ended: asyncio.Event) -> int:
        _say(self._texts("server-loading", url=self._url()))
        loading = loop.run_in_executor(None, self._load, opened)
        try:
            stopping = asyncio.ensure_future(ended.wait())
            awaited: set[asyncio.Future[Any]] = {loading, stopping}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                # Hashing a package or importing cannot be stopped; nothing is lost with it.
                await asyncio.wait({loading}, timeout=_LAST_LOADING)
                if not loading.done():
                    self._leave()
            stopping.cancel()
            backend = loading.result()
            if self._stop.is_set():
                return self._code
            self._ready(backend)
            await ended.wait()
            self._state.phase = Phase.DRAINING
            _say(self._texts("server-stopping", seconds=self._options.serving.drain_timeout))
            notify(self._environ, "STOPPING=1")
            await loop.run_in_executor(None, lambda: backend.scheduler.close(drain=self._options.serving.drain_timeout))
            return self._code
        except MindnanoError as error:
            if self._stop.is_set():  # loading was stopped
                return self._code
            self._code = error.exit_code
            self._journal.write("failed", {"slug": error.slug, "message": error.message})
            raise
        except Exception as error:  # the program's end tells of it in full
            told = resource_error(error) or InternalError("internal", repr(error))
            self._code = told.exit_code
            self._journal.write("failed", {"slug": told.slug, "message": told.message})
            raise

    def _load(self, opened: ExitStack) -> LoadedBackend:
        """In a thread of its own: the model with everything around it; `opened` closes it."""
        options = self._options
        grammars: list[GrammarFactory] = []

        def prepare(package: Package) -> None:
            grammars.append(GrammarFactory(package))
            grammars[0].prepare()

        model = opened.enter_context(
            open_model(
                options,
                self._environ,
                self._system,
                self._texts,
                is_stopped=self._stop.is_set,
                prepare_grammar=prepare if self._can_constrain() else None,
            )
        )
        grammar = grammars[0] if grammars else GrammarFactory(model.package)
        cache = model.session.options.session_cache_bytes
        require_room_to_save(options, cache)
        needed = conversation_bytes(model.memory.plan)
        if 0 < cache < needed:
            facts = {"cache": cache >> 20, "context": model.session.context, "needed": -(-needed >> 20)}
            _say(self._texts("server-cache-small", **facts))
        if options.session_cache_mib is None:
            _say(self._texts("server-cache", cache=cache >> 20))
        facts = {"session_cache_bytes": cache}
        self._journal.write("loaded", model.facts() | facts | model.memory.facts())
        generation = opened.enter_context(
            open_generation(
                model,
                options,
                grammar,
                created=int(time.time()),
                report=self._report,
                note=self._journal.write,
                system=self._system,
            )
        )
        backend = LoadedBackend(generation, options, self._system)
        # All of this stays. Looking through it again, as large bodies make Python do, would stop every thread.
        gc.collect()
        gc.freeze()
        return backend

    def _can_constrain(self) -> bool:
        """Loads the library for constrained replies, before the memory plan looks at the process."""
        try:
            load_library()
        except RequestError as error:
            _say(self._texts("server-no-grammar", reason=error.message))
            self._journal.write("grammar_unavailable", {"slug": error.slug, "message": error.message})
            return False
        return True

    def _ready(self, backend: LoadedBackend) -> None:
        card = backend.models()[0]
        self._metrics.watch(backend.queue, backend.cache, str(card["id"]))
        self._state.backend = backend
        self._state.phase = Phase.READY
        props = backend.props()
        shown = {name: props[name] for name in ("model", "context", "threads", "simd")}
        _say(self._texts("server-ready", url=self._url(), **shown))
        self._journal.write("ready", {"url": self._url(), "model": props["model"], "context": props["context"]})
        notify(self._environ, "READY=1")

    def _told(self, number: int, ended: asyncio.Event) -> None:
        """A signal: the first one drains, a second one ends at once."""
        again = self._stop.is_set()
        self._code = _SIGNALS[signal.Signals(number)]
        if again:
            self._leave()
        self._stop.set()
        ended.set()

    def _leave(self) -> NoReturn:
        """Ends the process without waiting for anything."""
        if self._plan.address.path is not None:
            with suppress(OSError):
                self._plan.address.path.unlink()
        os._exit(self._code)

    def _report(self, error: MindnanoError) -> None:
        _say(self._texts.error(error))
        self._journal.write("session_file", {"slug": error.slug, "message": error.message})

    def _url(self) -> str:
        return self._plan.address.url(tls=self._plan.tls is not None)


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, told: Any) -> Iterator[None]:
    """While this lasts the loop takes the signals; one that is ignored stays ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, told, number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
