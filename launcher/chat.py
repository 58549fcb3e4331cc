"""The terminal: a chat on a terminal, one answer anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from launcher.errors import EXIT_SIGHUP, EXIT_SIGTERM, ContextFull, UsageError
from launcher.generate import StopReason
from launcher.progress import Progress, format_bytes
from launcher.reply import Kind, Piece
from launcher.streaming import Caught, stream_reply
from launcher.talk import Talk
from launcher.terminal import Console

COMMANDS = ("/help", "/reset", "/stats", "/think", "/save", "/load", "/quit")
# Shorter prompts are read at once; a progress line would only flicker.
_PROGRESS_FROM = 1024


class ReplyView:
    """Shows the pieces of one reply: thinking on stderr, the answer on stdout."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind: Kind | None = None
        self._at_line_start = True
        self._progress: Progress | None = None

    def reading(self, done: int, total: int) -> None:
        """Progress through a long prompt."""
        if total < _PROGRESS_FROM:
            return
        if self._progress is None:
            texts = self._console.texts
            self._progress = Progress(
                texts("reading"), total, unit=texts("tokens"), stream=self._console.err, texts=texts
            )
        self._progress.update(done)
        if done == total:
            self._progress.close()

    def show(self, piece: Piece) -> None:
        """One more piece."""
        text = piece.text
        if piece.kind is not self._kind:
            if piece.kind is Kind.CONTENT:
                text = text.lstrip("\n")
                if not text:
                    return
            self._end_kind()
            self._kind = piece.kind
            if piece.kind is Kind.REASONING:
                self._console.thinking(self._console.texts("chat-thinking"))
        write = self._console.thinking if piece.kind is Kind.REASONING else self._console.answer
        write(text)
        self._at_line_start = text.endswith("\n")

    def end(self) -> None:
        """Ends the last line."""
        if self._progress is not None:
            self._progress.close()
        self._end_kind()
        self._kind = None

    def _end_kind(self) -> None:
        if self._kind is None or self._at_line_start:
            return
        (self._console.answer if self._kind is Kind.CONTENT else self._console.thinking)("\n")
        self._at_line_start = True


def answer_once(talk: Talk, console: Console, question: str) -> int:
    """Answers one question on stdout; returns the exit code.

    Raises:
        MindnanoError: the question cannot be answered.
    """
    caught = _reply(talk, console, question)
    if caught.exit_code:
        return caught.exit_code
    reason = talk.conversation.stats.reason
    if reason is StopReason.CONTEXT:
        console.say("chat-context-once", context=talk.context)
    elif reason is StopReason.LENGTH:
        console.say("chat-length")
    return 0


def read_question(stream: TextIO) -> str:
    """The whole of stdin as one question.

    Raises:
        UsageError: it is empty or not UTF-8.
    """
    try:
        text = stream.read()
    except UnicodeDecodeError as error:
        raise UsageError("text-encoding", f"stdin is not UTF-8: {error}", hint="convert it first") from error
    question = text.removesuffix("\n")
    if not question.strip():
        raise UsageError("no-question", "stdin is empty", hint="give a question as an argument or on stdin")
    return question


def run_chat(talk: Talk, console: Console, read_line: Callable[[], str]) -> int:
    """Talks until `/quit` or the end of input; returns the exit code.

    Args:
        talk: the open model.
        console: where to show.
        read_line: gives a line; raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C.
    """
    while True:
        try:
            line = read_line()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            console.say("chat-interrupt")
            continue
        if not line.strip():
            continue
        if line.startswith("/"):
            if line.split()[0] == "/quit":
                return 0
            try:
                _command(talk, console, line)
            except UsageError as error:
                console.say_text(console.texts.error(error))
            continue
        try:
            caught = _reply(talk, console, line)
        except ContextFull:
            console.say("chat-context", context=talk.context)
            continue
        if caught.exit_code in {EXIT_SIGHUP, EXIT_SIGTERM}:
            return caught.exit_code
        _say_reason(talk, console)


def _reply(talk: Talk, console: Console, question: str) -> Caught:
    view = ReplyView(console)
    try:
        caught = stream_reply(talk.conversation, question, show=view.show, reading=view.reading)
    finally:
        view.end()
    talk.log.write("reply", talk.conversation.stats.facts())
    return caught


def _say_reason(talk: Talk, console: Console) -> None:
    reason = talk.conversation.stats.reason
    if reason is StopReason.CANCELLED:
        console.say("chat-stopped")
    elif reason is StopReason.LENGTH:
        console.say("chat-length")
    elif reason is StopReason.CONTEXT:
        console.say("chat-context", context=talk.context)


def _command(talk: Talk, console: Console, line: str) -> None:
    words = line.split()
    conversation = talk.conversation
    if words == ["/help"]:
        console.say("chat-help")
    elif words == ["/reset"]:
        conversation.reset()
        console.say("chat-reset")
    elif words == ["/stats"]:
        _say_stats(talk, console)
    elif words[0] == "/think":
        slug = "chat-think-state"
        if words[1:] in (["on"], ["off"]):
            conversation.thinking = words[1] == "on"
        elif words[1:]:
            slug = "chat-think-usage"
        console.say(slug, state="on" if conversation.thinking else "off")
    elif words[0] in {"/save", "/load"}:
        _file_command(talk, console, words[0], line.strip().removeprefix(words[0]).strip())
    else:
        console.say("chat-unknown", command=words[0])


def _file_command(talk: Talk, console: Console, command: str, name: str) -> None:
    from launcher.chat_files import load_conversation, save_conversation

    if not name:
        console.say("chat-file-usage", command=command)
        return
    path = Path(name).expanduser()
    if command == "/save":
        save_conversation(path, talk.name, talk.conversation.messages)
        console.say("chat-saved", path=path, turns=len(talk.conversation.messages) // 2)
    else:
        talk.conversation.resume(load_conversation(path))
        console.say("chat-loaded", path=path, turns=len(talk.conversation.messages) // 2)


def _say_stats(talk: Talk, console: Console) -> None:
    stats = talk.conversation.stats
    console.say(
        "chat-stats",
        position=talk.conversation.position,
        context=talk.context,
        allocated=format_bytes(talk.allocated),
        prompt=stats.prompt,
        reused=stats.reused,
        prefill=stats.prefill_rate,
        generated=stats.generated,
        decode=stats.decode_rate,
    )
    memory = talk.memory
    now = talk.usage()
    if memory.usage is None or memory.unaccounted is None or now is None:
        console.say("chat-stats-plan", predicted=format_bytes(memory.predicted), full=format_bytes(memory.plan.full))
        return
    console.say(
        "chat-stats-memory",
        predicted=format_bytes(memory.predicted),
        measured=format_bytes(memory.usage.resident),
        unaccounted=_signed(memory.unaccounted),
        now=format_bytes(now.resident),
        full=format_bytes(memory.plan.full),
    )


def _signed(count: int) -> str:
    return ("-" if count < 0 else "+") + format_bytes(abs(count))
