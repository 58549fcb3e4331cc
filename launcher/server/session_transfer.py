"""Conversations that leave for another server, or come from one, within the memory of the session cache.

Both are moves of whole entries. What leaves is lent: its memory stays as it is until the loan is closed, whatever
becomes of the conversation meanwhile. What comes gets room first and takes its place in one step when it is complete.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from launcher.errors import RequestError
from launcher.server.session_entries import Block, Entry, Key, Live, Ram


@dataclass(slots=True, kw_only=True, eq=False)
class Loan:
    """A conversation that stays readable until `close`, which any thread may call."""

    entry: Entry
    _held: ExitStack

    def close(self) -> None:
        """Gives it back; does nothing the second time."""
        self._held.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Room:
    """Memory for a conversation that is on its way here; `close`, by any thread, gives back what is not used."""

    key: Key
    block: Block
    _ram: Ram
    _held: ExitStack
    _is_over: bool = field(default=False)

    def take(self) -> Block:
        """The memory, for good.

        Raises:
            RequestError: 499, it was given back meanwhile.
        """
        with self._ram.lock:
            if self._is_over:
                raise RequestError("cancelled", "nobody waits for the session any more", status=499)
            self._is_over = True
            return self.block

    def close(self) -> None:
        """Ends the reservation; does nothing the second time."""
        self._held.close()
        with self._ram.lock:
            if self._is_over:
                return
            self._is_over = True
        self._ram.free(self.block)


class Transfers:
    """All methods are called by the thread that uses the engine."""

    def __init__(
        self,
        ram: Ram,
        *,
        live: Callable[[], Live | None],
        export: Callable[[Live], Entry | None],
        load: Callable[[Key], Entry | None],
        holds: Callable[[Key], bool],
        stoppable: Callable[[Callable[[], bool]], AbstractContextManager[None]],
        clock: Callable[[], float],
    ) -> None:
        """Args:
        ram: the entries, whose budget everything here counts against.
        live: the conversation in the engine.
        export: copies it into an entry that is in no table; None where that has no room.
        load: brings a saved conversation into memory.
        holds: whether a conversation is saved.
        stoppable: while its context lasts, what must be saved to make room gives way when what it is given says so.
        clock: the store's.
        """
        self._ram = ram
        self._live = live
        self._export = export
        self._load = load
        self._holds = holds
        self._stoppable = stoppable
        self._clock = clock

    @property
    def budget(self) -> int:
        """Bytes that one conversation can have at most."""
        return self._ram.budget

    def lend(self, owner: str, name: str, is_stopped: Callable[[], bool] = lambda: False) -> Loan:
        """A conversation as it is now.

        Raises:
            Cancelled: `is_stopped()` while others were saved to make room; nothing has changed.
            RequestError: 404 there is none, 409 a reply is being made for it, 507 there is no room for a copy.
        """
        key = Key(owner=owner, name=name)
        live = self._idle_live(key)
        with ExitStack() as held:
            with self._stoppable(is_stopped):
                if live is not None:
                    entry = self._export(live)
                    if entry is None:
                        raise self._no_room(live.bytes)
                    held.callback(self._ram.free, entry.block)
                    return Loan(entry=entry, _held=held.pop_all())
                entry = self._ram.get(key)
                if entry is None and self._holds(key):
                    entry = self._load(key)
                    if entry is None and self._holds(key):
                        raise self._no_room(None)
            # Any thread may delete it until it is pinned.
            if entry is None or not held.enter_context(self._ram.pin(entry)):
                raise RequestError("session_not_found", f"there is no session {name!r}", status=404, param="id")
            return Loan(entry=entry, _held=held.pop_all())

    def reserve(self, owner: str, name: str, size: int, is_stopped: Callable[[], bool] = lambda: False) -> Room:
        """Memory for a conversation that comes. The one that it will replace stays until then.

        Raises:
            Cancelled: `is_stopped()` while others were saved to make room; nothing has changed.
            RequestError: 409 a reply is being made for the one that is to be replaced, 507 there is no room.
        """
        key = Key(owner=owner, name=name)
        self._idle_live(key)
        with ExitStack() as held:
            old = self._ram.get(key)
            if old is not None:
                held.enter_context(self._ram.pin(old))
            with self._stoppable(is_stopped):
                block = self._ram.new_block(size)
            if block is None:
                raise self._no_room(size)
            return Room(key=key, block=block, _ram=self._ram, _held=held.pop_all())

    def accept(self, room: Room, ids: array[int], checkpoints: Mapping[int, int]) -> bool:
        """Puts what came in the conversation's place; returns whether there was none before.

        Raises:
            RequestError: 409 a reply is being made for the one that is to be replaced, which stays.
            RequestError: 499 the room was given back meanwhile; nothing has changed.
        """
        key = room.key
        with self._ram.lock:
            live = self._idle_live(key)
            is_new = live is None and self._ram.get(key) is None and not self._holds(key)
            block = room.take()
            if live is not None:
                live.deleted = True
            self._ram.put(
                Entry(
                    key=key,
                    ids=ids,
                    checkpoints=dict(checkpoints),
                    block=block,
                    used=self._clock(),
                    private=True,
                )
            )
        return is_new

    def _idle_live(self, key: Key) -> Live | None:
        """What the engine holds of this conversation.

        Raises:
            RequestError: 409, it is working on it.
        """
        live = self._live()
        if live is None or live.key != key or live.deleted:
            return None
        if live.active:
            raise RequestError(
                "session_in_use",
                f"a reply is being made in the session {key.name!r}; try again when it is complete",
                status=409,
                param="id",
            )
        return live

    def _no_room(self, size: int | None) -> RequestError:
        found = "its state" if size is None else f"its state of {size} bytes"
        return RequestError(
            "session_cache_full",
            f"{found} finds no room beside what is in use of the session cache of {self._ram.budget} bytes; "
            "delete a session, or give the server more --session-cache-mib",
            status=507,
            kind="server_error",
            param="id",
        )
