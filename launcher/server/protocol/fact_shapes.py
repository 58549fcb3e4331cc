"""What the paths that make no text answer, as types, for the API's description; tests hold the answers against them."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Place = Literal["live", "ram", "disk"]


class Health(Struct, frozen=True, kw_only=True):
    """The server lives. `sleeping` is there only while it sleeps."""

    status: Literal["ok"]
    sleeping: Literal[True] | UnsetType = UNSET


class Readiness(Struct, frozen=True, kw_only=True):
    """Requests are taken. `sleeping` is there only while the server sleeps: the next request wakes it."""

    status: Literal["ready"]
    sleeping: Literal[True] | UnsetType = UNSET


class Controlled(Struct, frozen=True, kw_only=True):
    """What was done to a request: one of the four, which the path says."""

    request_id: str
    cancelled: Literal[True] | UnsetType = UNSET
    paused: Literal[True] | UnsetType = UNSET
    resumed: Literal[True] | UnsetType = UNSET
    thinking_ended: Literal[True] | UnsetType = UNSET


class SessionCard(Struct, frozen=True, kw_only=True):
    """A conversation that is kept, in the engine (live), in memory or on disk; `bytes` are those of its state."""

    id: str
    object: Literal["session"]
    tokens: int
    bytes: int
    place: Place
    idle_seconds: float


class SessionList(Struct, frozen=True, kw_only=True):
    """The caller's conversations, by name."""

    object: Literal["list"]
    data: list[SessionCard]


class SessionDeleted(Struct, frozen=True, kw_only=True):
    """A conversation was forgotten."""

    id: str
    object: Literal["session.deleted"]
    deleted: Literal[True]


class SessionTaken(Struct, frozen=True, kw_only=True):
    """A conversation came as a state."""

    id: str
    object: Literal["session"]
    tokens: int
    bytes: int
    place: Literal["ram"]


class NextToken(Struct, frozen=True, kw_only=True):
    """llama-server's view of the caller's running request; `n_remain` is -1 where there is none."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class SlotRequest(Struct, frozen=True, kw_only=True):
    """One of the caller's requests; `position` among those that wait, 0 where it does not."""

    id: str
    id_task: int
    session_id: str | None
    state: Literal["waiting", "reading", "writing", "paused"]
    position: int
    prompt_tokens: int
    generated_tokens: int
    seconds: float


class Slot(Struct, frozen=True, kw_only=True):
    """The place on the engine. `waiting` and `paused` count everybody's requests; the lists are the caller's."""

    id: int
    n_ctx: int
    is_processing: bool
    id_task: int
    next_token: list[NextToken]
    waiting: int
    paused: int
    requests: list[SlotRequest]
    sessions: list[SessionCard]


class MemoryFacts(Struct, frozen=True, kw_only=True):
    """Bytes of the process; predicted without a conversation and with a full context."""

    resident_bytes: int | None
    peak_bytes: int | None
    predicted_idle_bytes: int
    predicted_full_bytes: int


class QueueFacts(Struct, frozen=True, kw_only=True):
    """Requests; `limit` is how many may wait."""

    running: int
    waiting: int
    paused: int
    limit: int


class SessionFacts(Struct, frozen=True, kw_only=True):
    """The session cache; counts are since the start."""

    bytes: int
    budget_bytes: int
    entries: int
    hits: int
    misses: int
    evictions: int
    disk_bytes: int
    disk_budget_bytes: int
    prefix_checkpoints: int


class DefaultFacts(Struct, frozen=True, kw_only=True):
    """What counts where a request does not say; null for no limit."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    enable_thinking: bool
    thinking_budget: int | None
    max_tokens: int | None


class LlamaSettings(Struct, frozen=True, kw_only=True):
    """The context where llama-server's clients look for it."""

    n_ctx: int


class Properties(Struct, frozen=True, kw_only=True):
    """Facts about model, engine, memory and queue; llama-server has `total_slots` and `default_generation_settings`."""

    model: str
    name: str
    version: str
    system_fingerprint: str
    context: int
    total_slots: Literal[1]
    default_generation_settings: LlamaSettings
    kv_cache: str
    threads: int
    simd: str
    mtp: bool
    has_mtp_layer: bool
    process_id: int
    is_sleeping: bool
    memory: MemoryFacts
    queue: QueueFacts
    sessions: SessionFacts
    defaults: DefaultFacts
    chat_template: str
