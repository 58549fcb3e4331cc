"""The package's own chat template: messages -> prompt text.

The template is jinja2 source that came with the checkpoint, so it is not trusted: it runs in an immutable sandbox
without access to files or to the inside of Python objects, and its loops, repetitions and output are bounded. The
environment is set up as transformers does for `apply_chat_template` (block trimming, loop controls, `tojson` that keeps
Unicode, `raise_exception`, `strftime_now`, the `generation` block), so that a template gives the same text in both.

As in transformers, the rendered text is tokenised as a whole: a message that spells a special token gets that token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import jinja2
import jinja2.ext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launcher.errors import PackageError, UsageError

MAX_PROMPT_CHARACTERS = 16 << 20
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call in a turn of the assistant; `arguments` by name, `id` "" where none is known."""

    id: str = ""
    name: str
    arguments: Mapping[str, object]

    def variables(self) -> dict[str, object]:
        """What the template sees."""
        seen: dict[str, object] = {"id": self.id} if self.id else {}
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return seen | {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn. `role` is system, user, assistant or tool.

    `reasoning` is the thinking of an assistant turn; with None the template looks for it in the content. `name` is who
    speaks, or the tool that answers; `tool_call_id` is the call that a tool answers. Both are "" where not known.
    """

    role: str
    content: str
    reasoning: str | None = ""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    tool_call_id: str = ""

    def variables(self) -> dict[str, object]:
        """What the template sees."""
        seen: dict[str, object] = {"role": self.role, "content": self.content}
        if self.role == "assistant" and self.reasoning is not None:
            seen["reasoning_content"] = self.reasoning
        if self.tool_calls:
            seen["tool_calls"] = [call.variables() for call in self.tool_calls]
        if self.name:
            seen["name"] = self.name
        if self.tool_call_id:
            seen["tool_call_id"] = self.tool_call_id
        return seen


class ChatTemplate:
    """A compiled chat template with the special tokens of its package."""

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Compiles the template.

        Args:
            source: jinja2 text.
            special_tokens: `bos`, `eos`, `pad` ... -> text; the template sees them as `bos_token` and so on.
            now: the clock behind `strftime_now`.

        Raises:
            PackageError: the source is not valid jinja2.
        """
        self._variables = {f"{name}_token": text for name, text in special_tokens.items()}
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse

        def strftime_now(pattern: str) -> str:
            return now().strftime(pattern)

        environment.globals["strftime_now"] = strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise PackageError(
                "template-invalid",
                f"the package's chat template is not valid: {error}",
                hint="pack the model again from a checkpoint with a working template",
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        enable_thinking: bool,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """The prompt text for these messages.

        Raises:
            UsageError: the template refuses the messages.
            PackageError: the template fails, breaks out of the sandbox or gives more than 16 MiB of text.
        """
        try:
            return self._collect(
                messages=[message.variables() for message in messages],
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                **self._variables,
            )
        except _Refused as error:
            raise UsageError("template-refused", f"the chat template refuses this conversation: {error}") from error
        except jinja2.exceptions.SecurityError as error:
            raise PackageError(
                "template-unsafe",
                f"the chat template does what a template must not: {error}",
                hint="do not use this package",
            ) from error
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise PackageError(
                "template-failed",
                f"the chat template fails: {error}",
                hint="pack the model again from a checkpoint with a working template",
            ) from error

    def _collect(self, **variables: object) -> str:
        pieces = []
        length = 0
        for piece in self._template.generate(**variables):
            length += len(piece)
            if length > MAX_PROMPT_CHARACTERS:
                raise jinja2.exceptions.SecurityError("it writes without end")
            pieces.append(piece)
        return "".join(pieces)


class _Refused(jinja2.TemplateError):
    """`raise_exception` was called."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with repetition and powers bounded."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"*", "**"})  # type: ignore[misc]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > MAX_PROMPT_CHARACTERS or abs(right) > _MAX_EXPONENT):
            raise jinja2.exceptions.SecurityError("it computes a huge power")
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)


def _check_repetition(sequence: Any, times: Any) -> None:
    repeats = isinstance(sequence, str | list | tuple) and isinstance(times, int)
    if repeats and len(sequence) * times > MAX_PROMPT_CHARACTERS:
        raise jinja2.exceptions.SecurityError("it repeats text without end")


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here the text passes through."""

    tags = {"generation"}  # noqa: RUF012  (declared as an instance variable by jinja2)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    raise _Refused(message)
