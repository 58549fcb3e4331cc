"""Prompts that differ from transformers', templates that break out of the sandbox or grow without end."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from launcher.errors import PackageError, UsageError
from launcher.template import ChatTemplate, Message

ROOT = Path(__file__).resolve().parents[2]
DEMO_TEMPLATE = ROOT / "release" / "demo" / "chat_template.jinja"
SPECIAL = {"eos": "<|role_end|>", "pad": "<|endoftext|>"}

CONVERSATIONS = [
    [Message(role="user", content="hi")],
    [Message(role="system", content="Be brief."), Message(role="user", content="你好")],
    [
        Message(role="user", content="17+25?"),
        Message(role="assistant", content="42", reasoning="7+5=12"),
        Message(role="user", content='quotes " and <tags> & more'),
    ],
]

TEMPLATES = {
    "trim": "{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content }}]\n {% endif %}\n{% endfor %}\n",
    "json": "{{ messages[0] | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "tokens": "{{ eos_token }}{{ pad_token }}{{ bos_token is defined }}",
    "loops": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% generation %}a{{ messages[0].content }}{% endgeneration %}b",
    "flags": "{{ enable_thinking }} {{ add_generation_prompt }} {{ tools is none }} {{ documents is none }}",
}


def transformers_text(source: str, messages: list[Message], thinking: bool) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered, _ = utils.render_jinja_template(
        conversations=[[message.variables() for message in messages]],
        chat_template=source,
        add_generation_prompt=True,
        enable_thinking=thinking,
        **{f"{name}_token": text for name, text in SPECIAL.items()},
    )
    return str(rendered[0])


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_same_text_as_transformers(name: str, messages: list[Message], thinking: bool) -> None:
    ours = ChatTemplate(TEMPLATES[name], special_tokens=SPECIAL).render(messages, enable_thinking=thinking)
    assert ours == transformers_text(TEMPLATES[name], messages, thinking)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_built_in_template_gives_the_same_text_as_transformers(messages: list[Message], thinking: bool) -> None:
    source = DEMO_TEMPLATE.read_text(encoding="utf-8")
    ours = ChatTemplate(source, special_tokens=SPECIAL).render(messages, enable_thinking=thinking)
    assert ours == transformers_text(source, messages, thinking)
    assert ours.endswith("<think>" if thinking else "<think></think>")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ ().__class__.__bases__ }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{{ 10 ** 10000000 }}",
        "{% for i in range(99999) %}{% for j in range(999) %}xxxx{% endfor %}{% endfor %}",
    ],
)
def test_hostile_template_is_refused(source: str) -> None:
    template = ChatTemplate(source, special_tokens={})
    with pytest.raises(PackageError) as caught:
        template.render(CONVERSATIONS[0], enable_thinking=True)
    assert caught.value.slug in {"template-unsafe", "template-failed"}


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% include 'f' "])
def test_invalid_template_is_a_package_error(source: str) -> None:
    with pytest.raises(PackageError) as caught:
        ChatTemplate(source, special_tokens={})
    assert caught.value.slug == "template-invalid"


@pytest.mark.parametrize(
    "source", ["{% include '/etc/passwd' %}", "{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ 'a' + 1 }}"]
)
def test_failing_template_is_a_package_error(source: str) -> None:
    with pytest.raises(PackageError):
        ChatTemplate(source, special_tokens={}).render(CONVERSATIONS[0], enable_thinking=True)


def test_refused_messages_are_the_users_error() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={})
    with pytest.raises(UsageError, match="roles must alternate"):
        template.render(CONVERSATIONS[0], enable_thinking=True)


def test_clock_comes_from_outside() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", special_tokens={}, now=lambda: datetime(2001, 2, 3))
    assert template.render([], enable_thinking=True) == "2001"
