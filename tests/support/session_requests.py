"""Requests to a session store on a stand-in engine, as the scheduler runs them."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.server.request import MarkKind
from launcher.server.session_facts import Begun
from launcher.server.sessions import SessionStore
from tests.support.fake_sessions import FakeState

SYSTEM = list(range(1, 21))
PLENTY = 1 << 20


def ask(
    store: SessionStore,
    session: FakeState,
    prompt: Sequence[int],
    *,
    name: str | None = None,
    owner: str = "",
    marks: Sequence[tuple[int, MarkKind]] = (),
    reply: Sequence[int] = (),
) -> Begun:
    """One request as the scheduler runs it: begin, prefill with checkpoints at the marks, reply, end."""
    begun = store.begin(owner=owner, name=name, ids=prompt)
    assert begun.reused < len(prompt)
    assert session.tokens() == list(prompt[: begun.reused])
    for place, kind in marks:
        if begun.reused <= place:
            session.eval(prompt[session.position : place])
            store.keep(kind)
    session.eval(prompt[session.position :])
    assert session.tokens() == list(prompt)
    session.eval(reply)
    store.end()
    return begun


def turn(place: int) -> tuple[int, MarkKind]:
    return place, MarkKind.TURN


SYSTEM_MARK = (len(SYSTEM), MarkKind.SYSTEM)
