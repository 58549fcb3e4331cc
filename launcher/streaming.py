"""Runs a reply in a worker thread while the main thread shows it, so that Ctrl-C is heard at once.

Python handles signals in the main thread between two of its own instructions. If the main thread sat in the engine, a
Ctrl-C would wait for the whole evaluation; so the engine works in another thread and the main one waits on a queue.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Final

from launcher.conversation import Conversation
from launcher.errors import EXIT_SIGHUP, EXIT_SIGINT, EXIT_SIGTERM, InternalError
from launcher.reply import Piece

_EXIT_CODES: Final = {signal.SIGINT: EXIT_SIGINT, signal.SIGTERM: EXIT_SIGTERM, signal.SIGHUP: EXIT_SIGHUP}


@dataclass(slots=True)
class Caught:
    """The signal that asked for a stop, if one did."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """What the program exits with if it ends because of this; 0 without a signal."""
        if self.number is None:
            return 0
        return _EXIT_CODES[signal.Signals(self.number)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Progress through the prompt, in tokens."""

    done: int
    total: int


@contextmanager
def stopping(cancel: Callable[[], None]) -> Iterator[Caught]:
    """Within this context SIGINT, SIGTERM and SIGHUP call `cancel` instead of ending the program. Main thread only.

    A signal that was ignored when the program started stays ignored.
    """
    caught = Caught()

    def handle(number: int, _frame: FrameType | None) -> None:
        caught.number = number
        cancel()

    numbers = [number for number in _EXIT_CODES if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def stream_reply(
    conversation: Conversation,
    question: str,
    *,
    show: Callable[[Piece], None],
    reading: Callable[[int, int], None],
) -> Caught:
    """Asks and shows until the reply ends; both callbacks run in this thread.

    Args:
        conversation: where to ask.
        question: one user turn.
        show: called with each piece of the reply.
        reading: called with prompt tokens done and in all.

    Raises:
        MindnanoError: whatever the conversation raises.
    """
    events: SimpleQueue[Piece | _Reading | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            for piece in conversation.ask(question, lambda done, total: events.put(_Reading(done, total))):
                events.put(piece)
        except BaseException as error:  # raised again in the main thread
            events.put(error)
        finally:
            events.put(None)

    worker = threading.Thread(target=work, name="reply")
    with stopping(conversation.cancel) as caught:
        worker.start()
        try:
            while (event := events.get()) is not None:
                if isinstance(event, _Reading):
                    reading(event.done, event.total)
                elif isinstance(event, Piece):
                    show(event)
                elif isinstance(event, Exception):
                    raise event
                else:
                    raise InternalError("internal", f"the reply ended with {event!r}") from event
        except BaseException:
            conversation.cancel()
            raise
        finally:
            worker.join()
    return caught
