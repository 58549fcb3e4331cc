"""`GET /slots`: what balancers for llama-server want to know, with this server's own facts beside it.

There is one slot, because one request runs at a time. Of other callers it tells counts alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from launcher.server.run_ports import Phase
from launcher.server.scheduler_state import RequestDetails, SchedulerState

_NOTHING: Final = -1  # as llama-server says it
_RUNNING: Final = frozenset({Phase.READING, Phase.WRITING})


def slot(
    state: SchedulerState, own: Sequence[RequestDetails], *, context: int, sessions: Sequence[Mapping[str, object]]
) -> Mapping[str, object]:
    """The slot as a caller may see it.

    Args:
        state: what is going on.
        own: the caller's requests.
        context: tokens that a request can have.
        sessions: the caller's sessions, as in /v1/sessions.
    """
    running = next((request for request in own if request.phase in _RUNNING), None)
    left = _NOTHING if running is None else running.most - running.generated
    return {
        "id": 0,
        "n_ctx": context,
        "is_processing": state.running is not None or state.waiting > 0,
        "id_task": _NOTHING if running is None else running.number,
        "next_token": [
            {
                "has_next_token": running is not None and left > 0,
                "n_remain": left,
                "n_decoded": 0 if running is None else running.generated,
            }
        ],
        "waiting": state.waiting,
        "paused": state.paused,
        "requests": [_described(request) for request in own],
        "sessions": list(sessions),
    }


def _described(request: RequestDetails) -> Mapping[str, object]:
    return {
        "id": request.id,
        "id_task": request.number,
        "session_id": request.session,
        "state": request.phase.value,
        "position": request.position,
        "prompt_tokens": request.prompt,
        "generated_tokens": request.generated,
        "seconds": round(request.seconds, 3),
    }
