"""A checkpoint at a place that no later prompt comes back to, so that every turn is evaluated again."""

from __future__ import annotations

import pytest

from launcher.engine import Package
from launcher.engine_types import Section
from launcher.server.marks import Tools, marks
from launcher.server.request import Mark, MarkKind
from launcher.template import ChatTemplate, Message
from tests.support.demo import ROOT, require_demo
from tests.support.fake_engine import FakeText

DEMO = (ROOT / "release" / "demo" / "chat_template.jinja").read_text(encoding="utf-8")
DROPPING = (
    "{% if messages[0].role == 'system' %}<role>S</role>{{ messages[0].content }}<|role_end|>{% endif %}"
    "{% for m in messages if m.role != 'system' %}<role>{{ m.role }}</role>"
    "{% if m.role == 'assistant' and loop.last %}{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>A</role><think>{% endif %}"
)
"""Shows the thinking of a reply only while it is the last message."""
TOOLS: Tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
SYSTEM = Message(role="system", content="You answer briefly.")
TURNS = [
    Message(role="user", content="first?"),
    Message(role="assistant", content="one", reasoning="hm"),
    Message(role="user", content="second?"),
    Message(role="assistant", content="two", reasoning="hm"),
    Message(role="user", content="third?"),
]


class CountedTemplate(ChatTemplate):
    renders = 0

    def render(self, *arguments: object, **settings: object) -> str:
        self.renders += 1
        return super().render(*arguments, **settings)  # type: ignore[arg-type]


def found(
    messages: list[Message], *, source: str = DEMO, thinking: bool = True, tools: Tools = None, limit: int = 8
) -> tuple[CountedTemplate, tuple[Mark, ...], list[str], list[int]]:
    """The marks, and the text before each."""
    template = CountedTemplate(source, special_tokens={})
    text = FakeText()
    prompt = template.render(messages, enable_thinking=thinking, tools=tools)
    ids = text.tokenize(prompt)
    template.renders = 0
    result = marks(
        template,
        messages,
        thinking=thinking,
        tools=tools,
        prompt=prompt,
        ids=ids,
        tokenize=text.tokenize,
        limit=limit,
    )
    before = [b"".join(text.token_bytes(token) for token in ids[: mark.position]).decode() for mark in result]
    return template, result, before, ids


def turn_texts(result: tuple[Mark, ...], before: list[str]) -> list[str]:
    return [text for mark, text in zip(result, before, strict=True) if mark.kind is MarkKind.TURN]


def test_every_message_ends_at_a_mark() -> None:
    _, result, before, _ = found([SYSTEM, *TURNS])
    ends = turn_texts(result, before)
    assert len(ends) == len(TURNS)
    for end, message in zip(ends, TURNS, strict=True):
        assert end.endswith(f"{message.content}<|role_end|>")


def test_the_shared_beginning_is_one_of_another_question_and_of_the_other_thinking() -> None:
    _, result, before, _ = found([SYSTEM, *TURNS], tools=TOOLS)
    (system,) = [mark for mark in result if mark.kind is MarkKind.SYSTEM]
    shared = before[result.index(system)]
    assert "You answer briefly." in shared
    assert '"name": "add"' in shared
    assert "first" not in shared
    for thinking in (True, False):
        other, _, _, ids = found([SYSTEM, Message(role="user", content="else")], tools=TOOLS, thinking=thinking)
        text = other.render([SYSTEM, Message(role="user", content="else")], enable_thinking=thinking, tools=TOOLS)
        assert text.startswith(shared)
        assert ids[: system.position] == found([SYSTEM, *TURNS], tools=TOOLS)[3][: system.position]


def test_only_the_last_messages_are_marked_and_rendered() -> None:
    template, result, before, _ = found([SYSTEM, *TURNS], limit=2)
    ends = turn_texts(result, before)
    assert [end.endswith("two<|role_end|>") for end in ends] == [True, False]
    assert ends[1].endswith("third?<|role_end|>")
    assert template.renders == 4
    assert found([SYSTEM, *TURNS], limit=0)[1] == ()


def test_what_the_template_changes_later_is_no_mark() -> None:
    _, result, before, _ = found([SYSTEM, *TURNS], source=DROPPING)
    ends = turn_texts(result, before)
    assert [
        end.endswith(f"{content}<|role_end|>")
        for end, content in zip(ends, ("first?", "second?", "third?"), strict=True)
    ]
    assert len(ends) == 3


def test_results_of_tools_are_marked_where_the_template_closes_them() -> None:
    messages = [
        TURNS[0],
        Message(role="assistant", content="calls"),
        Message(role="tool", content="4"),
        Message(role="tool", content="5"),
    ]
    _, result, before, _ = found(messages, tools=TOOLS)
    ends = turn_texts(result, before)
    assert len(ends) == 3
    assert ends[-1].endswith("5\n</tool_response><|role_end|>")


def test_the_next_prompt_begins_with_the_marked_one() -> None:
    template, first, before, old = found([SYSTEM, TURNS[0]])
    _, _, _, ids = found([SYSTEM, *TURNS[:3]])
    last = first[-1].position
    assert ids[:last] == old[:last]
    prompt = template.render([SYSTEM, TURNS[0]], enable_thinking=True)
    assert before[-1] + "<role>ASSISTANT</role>\n<think>" == prompt  # only what makes the model speak comes after it


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('no') if messages | length < 3 }}x{{ messages | length }}", "{{ messages | length }}", "x"],
)
def test_a_template_without_such_places_gives_no_marks(source: str) -> None:
    messages = [SYSTEM, *TURNS]
    assert [mark for mark in found(messages, source=source)[1] if mark.kind is MarkKind.TURN] == []


def test_tokens_that_span_an_end_are_no_mark() -> None:
    """A tokenizer that joins two characters, where the end of a message lies between them."""

    def pairs(text: str) -> list[int]:
        return [hash(text[index : index + 2]) for index in range(0, len(text), 2)]

    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ '!!!' if add_generation_prompt }}", special_tokens={}
    )
    messages = [
        Message(role="user", content="abc"),
        Message(role="user", content="defg"),
        Message(role="user", content="h"),
    ]
    prompt = template.render(messages, enable_thinking=True)
    result = marks(
        template,
        messages,
        thinking=True,
        tools=None,
        prompt=prompt,
        ids=pairs(prompt),
        tokenize=pairs,
        limit=8,
    )
    assert [mark.position for mark in result if mark.kind is MarkKind.TURN] == [4]


def test_marks_of_the_built_in_model_are_prefixes_of_tokens() -> None:
    with Package(require_demo()) as package:
        source = package.section(Section.CHAT_TEMPLATE)
        assert source is not None
        template = ChatTemplate(source.decode(), special_tokens={})
        messages = [SYSTEM, *TURNS]
        prompt = template.render(messages, enable_thinking=True)
        ids = package.tokenize(prompt)
        result = marks(
            template,
            messages,
            thinking=True,
            tools=None,
            prompt=prompt,
            ids=ids,
            tokenize=package.tokenize,
            limit=8,
        )
        assert [mark.kind for mark in result] == [MarkKind.SYSTEM, *[MarkKind.TURN] * 5]
        for mark in result:
            text = b"".join(package.token_bytes(token) for token in ids[: mark.position]).decode()
            assert prompt.startswith(text)
            assert package.tokenize(text) == ids[: mark.position]
