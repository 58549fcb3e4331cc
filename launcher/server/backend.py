"""The loaded model as the routes see it: bodies in, values and documents out."""

from __future__ import annotations

import os
import secrets
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from launcher import __version__
from launcher.engine_types import Section
from launcher.errors import RequestError
from launcher.memory_plan import read_usage
from launcher.options.parse import Options
from launcher.server.generation import Generation
from launcher.server.planning import (
    count_of,
    detokenized,
    plan_chat,
    plan_completion,
    prompt_text,
    request_name,
    text_of,
    tokens_of,
)
from launcher.server.ports import CacheState, Call, Caller, QueueState
from launcher.server.protocol.decode import (
    check_chat,
    decode_chat,
    decode_completion,
    decode_control,
    decode_detokenize,
    decode_reasoning_control,
    decode_tokenize,
)
from launcher.server.protocol.replies import (
    ChatReply,
    ChatStream,
    CompletionReply,
    CompletionStream,
    ResponsesReply,
    ResponsesStream,
)
from launcher.server.protocol.responses_decode import decode_responses, renamed
from launcher.server.protocol.responses_input import chat_of
from launcher.server.protocol.shapes import InputTokens
from launcher.server.scheduler import Scheduler
from launcher.server.session_exchange import SessionExchange
from launcher.server.session_names import name_in_header
from launcher.server.slots import slot
from launcher.system import SystemView

_ID_BYTES = 12
_IDS_AT_ONCE = 1 << 16


class LoadedBackend:
    """See `launcher.server.ports.Backend`."""

    def __init__(self, generation: Generation, options: Options, system: SystemView) -> None:
        self._generation = generation
        self._served = generation.served
        self._options = options
        self._system = system
        source = generation.model.package.section(Section.CHAT_TEMPLATE) or b""
        self._template = source.decode(errors="replace")
        store, rules = generation.store, generation.rules
        self._exchange = SessionExchange(generation.scheduler, store.transfers, rules)

    @property
    def scheduler(self) -> Scheduler:
        """What runs requests."""
        return self._generation.scheduler

    @property
    def exchange(self) -> SessionExchange:
        """What moves sessions between servers."""
        return self._exchange

    def chat(self, body: bytes, caller: Caller) -> Call:
        """Reads and plans a chat.

        Raises:
            RequestError: it cannot be served.
        """
        chat = decode_chat(body)
        model = self._served
        id = request_name(chat, caller.headers.get("x-request-id")) or _new_id("chatcmpl-")
        request = plan_chat(model, chat, owner=caller.owner, header_session=_session(caller), id=id)
        return Call(
            request=request,
            stream=chat.stream is True,
            new_stream=lambda: ChatStream(
                model, request, include_usage=chat.include_usage, return_progress=chat.return_progress is True
            ),
            new_reply=lambda: ChatReply(model, request),
            prompt_text=self._logged(request.prompt),
        )

    def completion(self, body: bytes, caller: Caller) -> Call:
        """Reads and plans a completion.

        Raises:
            RequestError: it cannot be served.
        """
        asked = decode_completion(body)
        model = self._served
        id = request_name(asked, caller.headers.get("x-request-id")) or _new_id("cmpl-")
        request = plan_completion(model, asked, owner=caller.owner, header_session=_session(caller), id=id)
        echo = text_of(model, request.prompt) if asked.echo else ""
        return Call(
            request=request,
            stream=asked.stream is True,
            new_stream=lambda: CompletionStream(
                model,
                request,
                include_usage=asked.include_usage,
                return_progress=asked.return_progress is True,
                echo=echo,
            ),
            new_reply=lambda: CompletionReply(model, request, echo=echo),
            prompt_text=self._logged(request.prompt),
        )

    def responses(self, body: bytes, caller: Caller) -> Call:
        """Reads a response and plans the chat that asks for the same.

        Raises:
            RequestError: it cannot be served.
        """
        asked, items = decode_responses(body)
        model = self._served
        try:
            chat = chat_of(asked, items)
            check_chat(chat)
            id = request_name(chat, caller.headers.get("x-request-id")) or _new_id("resp_")
            request = plan_chat(model, chat, owner=caller.owner, header_session=_session(caller), id=id)
        except RequestError as error:
            raise renamed(error) from error
        return Call(
            request=request,
            stream=asked.stream is True,
            new_stream=lambda: ResponsesStream(model, asked, request),
            new_reply=lambda: ResponsesReply(model, asked, request),
            prompt_text=self._logged(request.prompt),
            typed_events=True,
        )

    def count_chat(self, body: bytes) -> Mapping[str, object]:
        """The answer of /v1/chat/completions/input_tokens."""
        return _counted(count_of(self._served, decode_chat(body)))

    def count_responses(self, body: bytes) -> Mapping[str, object]:
        """The answer of /v1/responses/input_tokens."""
        asked, items = decode_responses(body)
        try:
            chat = chat_of(asked, items)
            check_chat(chat)
            return _counted(count_of(self._served, chat))
        except RequestError as error:
            raise renamed(error) from error

    def tokenize(self, body: bytes) -> Mapping[str, object]:
        """The answer of /tokenize."""
        tokens = tokens_of(self._served, decode_tokenize(body))
        return {"tokens": _list_of(tokens), "count": len(tokens)}

    def detokenize(self, body: bytes) -> Mapping[str, object]:
        """The answer of /detokenize."""
        return {"content": detokenized(self._served, decode_detokenize(body))}

    def apply_template(self, body: bytes) -> Mapping[str, object]:
        """The answer of /apply-template."""
        return {"prompt": prompt_text(self._served, decode_chat(body))}

    def request_id(self, body: bytes) -> str:
        """Which request /v1/cancel and the like mean."""
        return decode_control(body).request_id

    def controlled_id(self, body: bytes) -> str:
        """Whose thinking /v1/chat/completions/control ends."""
        return decode_reasoning_control(body).id

    def models(self) -> Sequence[Mapping[str, object]]:
        """The entries of /v1/models."""
        card: dict[str, object] = msgspec.to_builtins(self._served.card())
        return (card,)

    def props(self) -> Mapping[str, object]:
        """The answer of /props."""
        model = self._generation.model
        wanted = model.session.options
        usage = read_usage(self._system)
        cache = self.cache()
        queue = self.queue()
        return {
            "model": self._served.id,
            "name": model.name,
            "version": __version__,
            "system_fingerprint": self._served.fingerprint,
            "context": wanted.context,
            "total_slots": 1,
            "default_generation_settings": {"n_ctx": wanted.context},
            "kv_cache": wanted.kv_type.label,
            "threads": model.engine.threads,
            "simd": model.engine.simd,
            "mtp": self._options.mtp,
            "has_mtp_layer": model.package.has_mtp,
            "process_id": os.getpid(),
            "is_sleeping": queue.sleeping,
            "memory": {
                "resident_bytes": None if usage is None else usage.resident,
                "peak_bytes": None if usage is None else usage.peak,
                "predicted_idle_bytes": model.memory.predicted,
                "predicted_full_bytes": model.memory.plan.full,
            },
            "queue": {name: getattr(queue, name) for name in ("running", "waiting", "paused", "limit")},
            "sessions": {
                "bytes": cache.bytes,
                "budget_bytes": cache.budget,
                "entries": cache.entries,
                "hits": cache.hits,
                "misses": cache.misses,
                "evictions": cache.evictions,
                "disk_bytes": cache.disk_bytes,
                "disk_budget_bytes": cache.disk_budget,
                "prefix_checkpoints": wanted.checkpoints,
            },
            "defaults": {
                "temperature": model.sampling.temperature,
                "top_p": model.sampling.top_p,
                "top_k": model.sampling.top_k,
                "min_p": model.sampling.min_p,
                "repetition_penalty": model.sampling.repetition_penalty,
                "enable_thinking": self._served.thinking,
                "thinking_budget": self._served.thinking_budget,
                "max_tokens": self._served.max_tokens,
            },
            "chat_template": self._template,
        }

    def queue(self) -> QueueState:
        """How busy it is."""
        state = self.scheduler.state()
        return QueueState(
            running=int(state.running is not None),
            waiting=state.waiting,
            paused=state.paused,
            limit=self._options.serving.queue,
            generated=state.generated,
            prefilled=state.prefilled,
            sleeping=self._generation.sleeper.is_sleeping,
            sleeps=self._generation.sleeper.count,
        )

    def cache(self) -> CacheState:
        """How full the session cache is."""
        usage = self._generation.store.usage()
        limit = self._options.serving.session_dir_mib << 20
        return CacheState(
            bytes=usage.bytes,
            budget=usage.budget,
            entries=usage.entries,
            hits=usage.hits,
            misses=usage.misses,
            evictions=usage.evictions,
            disk_bytes=usage.disk_bytes,
            disk_budget=0 if self._options.serving.session_dir is None else limit,
        )

    def sessions(self, owner: str) -> Sequence[Mapping[str, object]]:
        """The owner's conversations."""
        return [
            {
                "id": info.name,
                "object": "session",
                "tokens": info.tokens,
                "bytes": info.bytes,
                "place": info.place.value,
                "idle_seconds": round(info.idle_seconds, 3),
            }
            for info in self._generation.store.listing(owner)
        ]

    def delete_session(self, owner: str, name: str) -> bool:
        """Forgets a conversation; whether there was one."""
        return self._generation.store.delete(owner, name)

    def slots(self, owner: str) -> Sequence[Mapping[str, object]]:
        """The answer of /slots."""
        state, own = self.scheduler.state(), self.scheduler.requests(owner)
        return (slot(state, own, context=self._served.context, sessions=self.sessions(owner)),)

    def _logged(self, prompt: Sequence[int]) -> str | None:
        return text_of(self._served, prompt) if self._options.serving.log_prompts else None


def _counted(tokens: int) -> Mapping[str, object]:
    counted: dict[str, object] = msgspec.to_builtins(InputTokens(input_tokens=tokens))
    return counted


def _session(caller: Caller) -> str | None:
    value = caller.headers.get("x-session-id")
    return None if value is None else name_in_header(value)


def _new_id(kind: str) -> str:
    return kind + secrets.token_hex(_ID_BYTES)


def _list_of(ids: array[int]) -> msgspec.Raw:
    """A JSON list of ids, written piece by piece: all at once would keep every other thread waiting."""
    pieces = (ids[start : start + _IDS_AT_ONCE].tolist() for start in range(0, len(ids), _IDS_AT_ONCE))
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(piece)[1:-1] for piece in pieces) + b"]")
