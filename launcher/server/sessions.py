"""Conversations that take turns in one engine session.

One conversation is live in the engine; the others are exports in memory or files. A request goes on from the furthest
state whose token ids are the beginning of its own: they are compared one by one, so all that two conversations ever
share is a state that their equal beginnings lead to, and a reply is what it would be without any of this.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Final
from weakref import WeakSet

from launcher.errors import Cancelled, InternalError, MindnanoError
from launcher.server.events import CacheSource
from launcher.server.request import MarkKind
from launcher.server.session_choice import COLD, Choice, best_choice, entry_choice, live_choice, saved_choices
from launcher.server.session_engine import EngineState, StatePort
from launcher.server.session_entries import Entry, Key, Live, Ram, token_array
from launcher.server.session_facts import Begun, CacheUsage, SessionInfo, is_unwanted, listed, usage_of
from launcher.server.session_files import Saved, SessionFiles
from launcher.server.session_room import forget_saved, is_due, no_room_to_save, unsaved
from launcher.server.session_transfer import Transfers

SETTLE_SECONDS: Final = 2.0
"""A session is saved when nobody used it for so long, so that a burst of turns is saved once."""
RETRY_SECONDS: Final = 60.0
"""What could not be saved is tried again after so long."""
_Asked = Callable[[], bool]
_NOBODY: Final = Key(owner="", name=None)  # numbers begin at 1


def _never() -> bool:
    return False


class SessionStore:
    """Everything but `listing`, `delete` and `usage` is called by the thread that uses the engine."""

    def __init__(
        self,
        session: StatePort,
        *,
        budget: int,
        files: SessionFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over an engine session.

        Args:
            budget: bytes for conversations that are not live; with 0 there are none, and nothing can be saved.
            files: where named conversations are saved; the store closes it.
        """
        self._session = session
        self._engine = EngineState(session)
        self._files = files
        self._clock = clock
        self._lock = threading.RLock()
        self._ram = Ram(budget=budget, lock=self._lock, is_due=self._is_unsaved, spill=self._spill)
        self._is_stopped: _Asked = _never  # whether evicting should give way
        self._live: Live | None = None
        self._lives: WeakSet[Live] = WeakSet()  # also of requests that begin, or wait for their next turn
        self._numbers = itertools.count(1)
        self._retry = 0.0  # nothing is saved before, after it failed
        self._hits = 0
        self._misses = 0
        self.transfers = Transfers(
            self._ram,
            live=lambda: self._live,
            export=self._export,
            load=self._load,
            holds=lambda key: files is not None and files.holds(key),
            stoppable=self._stoppable,
            clock=clock,
        )

    # -- the thread of the engine --

    def begin(
        self, *, owner: str, name: str | None, ids: Sequence[int], is_stopped: _Asked = _never, before: object = None
    ) -> Begun:
        """Makes the engine session the conversation's, as far as anything kept agrees with the prompt.

        Args:
            owner, name: whose conversation; a name of None takes up the owner's nameless one that agrees furthest, if
                it agrees on more than what another has too, and else begins one.
            ids: the whole prompt, at least one id. At least the last is left to evaluate.
            is_stopped: whether the request should leave; asked between pieces of what must be written first.
            before: what this returned to the same request last; a conversation that was deleted since stays away.

        Raises:
            Cancelled: it should leave; no conversation lost anything.
        """
        if not ids:
            raise InternalError("session-prompt", "a prompt has at least one token")
        prompt = token_array(ids)
        self._bury()
        live = Live(key=Key(owner=owner, name=name), used=self._clock())
        with self._lock:  # what is deleted from here on, while others are written, stays away as well
            self._lives.add(live)
            live.deleted = live.unwanted = unwanted = is_unwanted(before)
        choice, leaves = self._choose(live.key, prompt)
        new = Key(owner=owner, name=None if unwanted else name, number=next(self._numbers))
        key = new if unwanted else choice.key_of(new, self._engine.slots)
        aside = new if leaves and not unwanted else key
        with self._stoppable(is_stopped):
            self._put_away(key, choice, aside)
            choice, begun = self._take(key, choice, prompt)
        with self._lock:
            self._ram.supersede(key, aside)
            if choice.key is not None and not unwanted and choice.carries_on(key, self._engine.slots):
                self._ram.forget(choice.key)
            live.key, live.tokens, live.private = key, self._session.position, begun.reused > 0 and choice.private
            self._live = live
            self._hits += begun.reused > 0
            self._misses += begun.reused == 0
        return replace(begun, live=live)

    def keep(self, kind: MarkKind) -> None:
        """Keeps a checkpoint here: the shared beginning in its own slot, a turn in an empty one or the earliest's."""
        self._engine.keep(kind)

    def end(self) -> None:
        """The reply is over, however it ended; the state stays the conversation's. Without any there is none, and an
        earlier one has its name again."""
        tokens, size = self._session.position, self._session.export_bytes
        with self._lock:
            if self._live is not None and not tokens:
                self._ram.name_again(self._live.key)
                self._live = None
            elif self._live is not None:
                self._live.used, self._live.active = self._clock(), False
                self._live.tokens, self._live.bytes = tokens, size

    def discard(self) -> None:
        """The engine failed; what it holds is worth nothing, nor is a state under that name that a client sent:
        its numbers may be the reason, and who comes back should not meet them again."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None and live.private:
                self._ram.forget_private(live.key)
                with suppress(MindnanoError):
                    if self._files is not None:
                        self._files.remove(live.key)
        self._session.reset()

    def idle(self, wanted: _Asked = _never) -> float | None:
        """Saves what changed and was left alone for a while; gives up between pieces when `wanted()`.

        Returns:
            Seconds until there is something to do again; None where there is nothing.
        """
        if self._files is None:
            return None
        now = self._clock()
        waits = []
        for each in unsaved(self._ram, self._live):
            wait = max(each.used + SETTLE_SECONDS, self._retry) - now
            outcome = Saved.ABANDONED if wait > 0 or wanted() else self._save(each, wanted)
            if outcome is Saved.FAILED:
                self._retry = now + RETRY_SECONDS
            if outcome in (Saved.ABANDONED, Saved.FAILED):
                waits.append(max(0.0, wait, self._retry - now))
        return min(waits, default=None)

    def put_to_sleep(self, wanted: _Asked = _never) -> None:
        """Empties the engine session, whose memory may then go, and the memory of what the disk holds as it is.

        Raises:
            Cancelled: `wanted()` while there was something to write; nothing is lost.
        """
        self._bury()
        with self._stoppable(wanted):
            self._put_away(_NOBODY, COLD, _NOBODY)
            for entry in self._ram.entries():
                if self._is_unsaved(entry):
                    self._spill(entry)
        forget_saved(self._ram, self._files)

    def close(self) -> None:
        """Saves what changed and frees everything."""
        if self._files is not None:
            for each in unsaved(self._ram, self._live):
                self._save(each, _never)
        with self._lock:
            self._live = None
            for entry in self._ram.entries():
                self._ram.forget(entry.key)
        if self._files is not None:
            self._files.close()

    # -- any thread --

    def listing(self, owner: str) -> tuple[SessionInfo, ...]:
        """The owner's named conversations, by name."""
        with self._lock:
            saved = () if self._files is None else self._files.saved()
            return listed(owner, saved, self._ram.entries(), self._live, self._clock())

    def delete(self, owner: str, name: str) -> bool:
        """Forgets a conversation, also on disk; returns whether there was one. A running reply goes on to its end.

        Raises:
            ResourceError: its file cannot be removed.
        """
        key = Key(owner=owner, name=name)
        with self._lock:
            was_live = self._live is not None and self._live.key == key and not self._live.deleted
            for each in self._lives:
                if each.key == key:
                    each.deleted = each.unwanted = True
            kept = [self._ram.forget(entry.key) for entry in self._ram.entries() if entry.key.is_of(key)]
            was_saved = self._files is not None and self._files.remove(key)
        return was_live or any(kept) or was_saved

    def usage(self) -> CacheUsage:
        """Sizes and counts."""
        with self._lock:
            return usage_of(self._ram, self._files, hits=self._hits, misses=self._misses)

    # -- choosing and moving --

    def _choose(self, own: Key, prompt: array[int]) -> tuple[Choice, bool]:
        """What to go on from, and whether the conversation that has the name is another one, which gives it away."""
        live = self._live
        choices = [] if live is None else [live_choice(live, *self._engine.state(), own, prompt)]
        choices += [entry_choice(entry, own, prompt) for entry in self._ram.entries()]
        if self._files is not None and own.name is not None and not any(choice.key == own for choice in choices):
            choices += saved_choices(own, self._files.peek(own), prompt)
        leaves = any(choice.key == own and choice.leaves(self._engine.slots) for choice in choices)
        return best_choice(choices, own), leaves

    def _bury(self) -> None:
        """Lets go of a live conversation that was deleted."""
        with self._lock:
            if self._live is None or not self._live.deleted:
                return
            self._live = None
        self._session.reset()

    def _put_away(self, key: Key, choice: Choice, aside: Key) -> None:
        """Moves another conversation out of the engine, if there is one; the choice's memory stays.

        `aside` is the name that the one at `key` gets where it is another one.
        """
        live = self._live
        if live is None or live.key == key == aside:
            return
        with nullcontext() if choice.entry is None else self._ram.pin(choice.entry):
            entry = self._export(live)
        with self._lock:
            if entry is not None and live.deleted:
                self._ram.free(entry.block)
            elif entry is not None:
                entry.key = aside if live.key == key else live.key
                self._ram.put(entry)
            self._live = None

    def _export(self, live: Live) -> Entry | None:
        """A copy of the live conversation, not in the table yet; None where it has no room or the engine fails."""
        ids, checkpoints = self._engine.state()
        block = self._ram.new_block(self._session.export_bytes) if ids else None
        if block is None:
            return None
        if not self._engine.export_into(block.memory):
            self._ram.free(block)
            return None
        return Entry(
            key=live.key,
            ids=ids,
            checkpoints=checkpoints,
            block=block,
            used=live.used,
            changed=live.changed,
            private=live.private,
        )

    def _take(self, key: Key, choice: Choice, prompt: array[int]) -> tuple[Choice, Begun]:
        """Goes to the choice's position, or starts cold where that fails."""
        if choice.source is CacheSource.DISK:
            entry = self._load(key)
            choice = COLD if entry is None else replace(entry_choice(entry, key, prompt), source=CacheSource.DISK)
        if choice.source is CacheSource.LIVE and choice.reused:
            taken = self._engine.roll_back(choice.reused)
        else:
            taken = choice.entry is not None and choice.reused > 0 and self._import(choice.entry, choice.reused, prompt)
        if not taken:
            self._session.reset()
            return COLD, Begun(reused=0, source=CacheSource.NONE)
        return choice, Begun(reused=choice.reused, source=choice.source)

    def _import(self, entry: Entry, position: int, prompt: array[int]) -> bool:
        with self._ram.pin(entry) as alive:
            taken = alive and self._engine.take(entry.block.memory, position, prompt)
        if taken:
            self._ram.touch(entry, self._clock())
        else:
            self._ram.forget(entry.key)
        return taken

    def _load(self, key: Key) -> Entry | None:
        """What was saved of the conversation, verified and in memory; None where it is not usable."""
        loaded = None if self._files is None else self._files.load(key, self._ram.new_block, self._ram.free)
        if loaded is None or self._files is None:
            return None
        with self._lock:
            if not self._files.holds(key):  # deleted while it was read
                self._ram.free(loaded.block)
                return None
            entry = Entry(
                key=key,
                ids=loaded.ids,
                checkpoints=loaded.checkpoints,
                block=loaded.block,
                used=self._clock(),
                changed=False,
                private=loaded.private,
            )
            self._ram.put(entry)
        return entry

    # -- saving --

    def _is_unsaved(self, entry: Entry) -> bool:
        """Whether evicting it takes a save, or would where the disk took any."""
        return self._files is not None and is_due(entry.key, changed=entry.changed) and self._clock() >= self._retry

    @contextmanager
    def _stoppable(self, is_stopped: _Asked) -> Iterator[None]:
        """Saving what is to be evicted ends with `Cancelled` in here when `is_stopped()`."""
        self._is_stopped = is_stopped
        try:
            yield
        finally:
            self._is_stopped = _never

    def _spill(self, entry: Entry) -> None:
        """Saves what is to be evicted."""
        outcome = self._save_entry(entry, self._is_stopped)
        if outcome is Saved.FAILED:
            self._retry = self._clock() + RETRY_SECONDS
        elif outcome is Saved.ABANDONED and not entry.forgotten:
            # Not asked once more: who wanted it may have changed their mind, but what is unsaved must not go.
            raise Cancelled("cancelled", "stopped while a conversation was saved to make room")

    def _save(self, what: Entry | Live, wanted: _Asked) -> Saved:
        return self._save_live(what, wanted) if isinstance(what, Live) else self._save_entry(what, wanted)

    def _save_entry(self, entry: Entry, wanted: _Asked) -> Saved:
        if self._files is None:
            return Saved.FAILED
        with self._ram.pin(entry) as alive:
            if not alive:
                return Saved.DONE  # nobody wants it any more
            outcome = self._files.save(
                entry.key,
                entry.ids,
                entry.checkpoints,
                entry.block.memory,
                lambda: wanted() or entry.forgotten,
                private=entry.private,
            )
        entry.changed = outcome in (Saved.ABANDONED, Saved.FAILED)
        return outcome

    def _save_live(self, live: Live, wanted: _Asked) -> Saved:
        """Saves the live conversation by way of an export, for which the budget must have room."""
        if self._files is None:
            return Saved.FAILED
        if wanted():
            return Saved.ABANDONED
        try:
            with self._stoppable(wanted):
                entry = self._export(live)
        except Cancelled:
            return Saved.ABANDONED
        if entry is None:
            self._files.tell(no_room_to_save(self._session.export_bytes))
            return Saved.FAILED
        try:
            outcome = self._files.save(
                live.key,
                entry.ids,
                entry.checkpoints,
                entry.block.memory,
                lambda: wanted() or live.deleted,
                private=live.private,
            )
        finally:
            self._ram.free(entry.block)
        live.changed = outcome in (Saved.ABANDONED, Saved.FAILED)
        return outcome
