"""Room for conversations outside the engine: whether the budget is of any use, and what need not stay in memory."""

from __future__ import annotations

from typing import Final

from launcher.errors import ResourceError, UsageError
from launcher.memory_plan import ProcessPlan
from launcher.options.parse import Options
from launcher.server.session_entries import Entry, Key, Live, Ram
from launcher.server.session_files import SessionFiles

# An export holds all of the session but what a step needs only while it lasts.
_KEPT: Final = frozenset(
    {"kv_cache", "mtp_kv_cache", "recurrent_state", "conv_state", "prefix_checkpoints", "timeline", "session"}
)


def conversation_bytes(plan: ProcessPlan) -> int:
    """What one conversation takes outside the engine when its context is full and every checkpoint is used."""
    return sum(term.bytes for term in plan.terms if term.name in _KEPT)


def require_room_to_save(options: Options, budget: int) -> None:
    """Checks that conversations can be saved where that is asked for: a save goes by way of the session cache.

    Args:
        options: the options.
        budget: bytes of the session cache, chosen or given.

    Raises:
        UsageError: there is no session cache.
    """
    folder = options.serving.session_dir
    if folder is None or budget > 0:
        return
    if options.session_cache_mib is None:
        reason = "no memory is left for a session cache"
        ways = "choose a smaller --context, free memory, give --session-cache-mib MIB"
    else:
        reason = f"--session-cache-mib is {options.session_cache_mib}"
        ways = "give --session-cache-mib MIB with room for a conversation"
    raise UsageError(
        "session-dir-no-cache",
        f"--session-dir {folder} would save nothing: conversations are copied into the session cache first, and "
        f"{reason}",
        hint=f"{ways}, or leave --session-dir out",
    )


def no_room_to_save(size: int) -> ResourceError:
    """The error for a live conversation of `size` bytes that is to be saved, but has no room for a copy."""
    return ResourceError(
        "session-unsaved",
        f"a session cannot be saved: there is no room for a copy of its {size} bytes",
        hint="raise --session-cache-mib",
    )


def is_due(key: Key, *, changed: bool) -> bool:
    """Whether a conversation belongs on the disk and is not there as it is."""
    return changed and key.is_saved


def unsaved(ram: Ram, live: Live | None) -> list[Entry | Live]:
    """The conversations that belong on the disk and are not there as they are, without one that a reply changes."""
    found: list[Entry | Live] = [entry for entry in ram.entries() if is_due(entry.key, changed=entry.changed)]
    if live is not None and not live.active and not live.deleted and is_due(live.key, changed=live.changed):
        found.append(live)
    return found


def forget_saved(ram: Ram, files: SessionFiles | None) -> None:
    """Frees the memory of every conversation whose file holds the very same state."""
    for entry in ram.entries():
        if files is not None and files.peek(entry.key) == (entry.ids, entry.checkpoints):
            ram.forget(entry.key)
