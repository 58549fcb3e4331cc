"""What the scheduler tells about itself and about one request."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.server.run_ports import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler is doing, and its counts since the start.

    Attributes:
        running: id of the request on the engine, or None.
        waiting: requests that will run when their turn comes.
        paused: requests that wait for their resume.
        draining: new requests are refused for good.
        accepted, refused: requests that came.
        finished, cancelled, failed: requests that ended; cancelled ones also by a client that went or a shutdown.
        generated, prefilled, cached: tokens of replies, tokens of prompts that were read, and that needed no reading.
    """

    running: str | None
    waiting: int
    paused: int
    draining: bool
    accepted: int
    finished: int
    cancelled: int
    failed: int
    refused: int
    generated: int
    prefilled: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDetails:
    """Where one request is.

    Attributes:
        number: how many came before it since the start.
        position: its place among those that wait, 0 where it does not wait for others.
        prompt, most: tokens of the prompt, and of a choice at most.
        choice, generated: which choice is being made, and its tokens so far; 0 before it runs.
        seconds: since acceptance.
    """

    id: str
    number: int
    session: str | None
    phase: Phase
    position: int
    prompt: int
    most: int
    choice: int
    generated: int
    seconds: float
