"""The chat with stand-ins for the engine: every answer counts up slowly and long, or repeats the question."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

from launcher.chat import run_chat
from launcher.conversation import Conversation, Ports
from launcher.event_log import EventLog
from launcher.interrupts import end_in_good_order
from launcher.line_editor import line_reader
from launcher.loading import LoadedMemory
from launcher.memory_plan import ProcessPlan, Usage
from launcher.messages import Catalogue, Language
from launcher.options.table import ColorMode
from launcher.talk import Talk
from launcher.template import ChatTemplate
from launcher.terminal import Console
from tests.support.fake_engine import STOP, FakeSession, FakeStream, FakeText

TEMPLATE = (
    "{% for m in messages %}<role>{{ m.role }}</role>"
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|role_end|>"
    "{% endfor %}<role>assistant</role><think>{{ '' if enable_thinking else '</think>' }}"
)


class Parrot:
    """Begins a new reply whenever the session ends with a generation prompt."""

    def __init__(self, session: FakeSession) -> None:
        self._session = session
        self._text = FakeText()
        self._reply: Iterator[int] = iter(())

    def __call__(self) -> int:
        prompt = b"".join(self._text.token_bytes(token) for token in self._session.timeline).decode(errors="replace")
        if prompt.endswith(("<think>", "<think></think>")):
            self._reply = self._tokens(prompt)
        return next(self._reply, STOP)

    def _tokens(self, prompt: str) -> Iterator[int]:
        question = prompt.split("<role>user</role>")[-1].split("<|role_end|>")[0]
        if question == "count":
            for number in itertools.count(1):
                time.sleep(0.005)
                yield from self._text.tokenize(f"{number} ")
        thought = "hm</think>" if prompt.endswith("<think>") else ""
        turns = prompt.count("<role>user</role>")
        yield from self._text.tokenize(f"{thought}[{question}] turn {turns}")


def main() -> int:
    end_in_good_order()
    session = FakeSession()
    ports = Ports(
        text=FakeText(),
        session=session,
        new_stream=FakeStream,
        new_sampler=lambda: Parrot(session),
        stop_ids=frozenset({STOP}),
    )
    conversation = Conversation(ports, ChatTemplate(TEMPLATE, special_tokens={}), thinking="--think" in sys.argv)
    talk = Talk(
        name="slow",
        conversation=conversation,
        context=100_000,
        threads=1,
        simd="none",
        allocated=1 << 20,
        memory=LoadedMemory(
            plan=ProcessPlan(terms=(), idle=40 << 20, full=50 << 20, mapped=30 << 20),
            preloaded=True,
            usage=Usage(resident=41 << 20, peak=42 << 20),
        ),
        usage=lambda: Usage(resident=43 << 20, peak=44 << 20),
        log=EventLog(None),
    )
    texts = Catalogue(Language.ENGLISH)
    console = Console(texts, out=sys.stdout, err=sys.stderr, color=ColorMode.NEVER, environ={})
    return run_chat(talk, console, line_reader(sys.stderr, ColorMode.NEVER))


if __name__ == "__main__":
    sys.exit(main())
