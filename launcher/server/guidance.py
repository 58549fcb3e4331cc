"""The binding to llguidance, the library that knows which tokens a grammar allows next.

Nothing else imports it. A server does so before it plans its memory, else the first constraint does.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, Protocol

from launcher.engine_types import ModelConfig
from launcher.errors import EngineError, RequestError

if TYPE_CHECKING:
    from types import ModuleType

    from llguidance import LLParserLimits, LLTokenizer

# What compiling a grammar and one step through it may cost; the library says about 20 steps of fuel a microsecond.
# Measured with the hostile schemas of the tests: under a second to compile, under 60 ms a step, under 100 MiB.
_LIMITS: Final = {
    "max_items_in_row": 4_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 30_000,  # 1 to 2 KiB each
    "max_grammar_size": 200_000,
}
# Bytes of address space while a grammar compiles. Measured: 5 KiB for each level of `schema_check.MAX_TOTAL_DEPTH`.
_STACK: Final = 64 * 1024 * 1024


class Vocabulary(Protocol):
    """What a package knows about its tokens; `launcher.engine.Package` is one."""

    @property
    def config(self) -> ModelConfig: ...

    def token_bytes(self, token: int) -> bytes: ...

    def token_is_special(self, token: int) -> bool: ...

    def token_find(self, data: bytes) -> int | None: ...

    def tokenize(self, text: str, *, special: bool = True) -> list[int]: ...


class Matcher(Protocol):
    """One walk through a grammar: the methods of `llguidance.LLMatcher` that are used. None of them raises."""

    def deep_copy(self) -> Matcher: ...

    def consume_token(self, sampled_token: int) -> bool: ...

    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None: ...

    def is_stopped(self) -> bool: ...

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...


def load_library() -> ModuleType:
    """The `llguidance` module.

    Raises:
        RequestError: it cannot be loaded here; all but constraints works without it.
    """
    from launcher.payload.extension import import_llguidance

    try:
        return import_llguidance(os.environ)
    except EngineError as error:
        raise RequestError(
            "constrained_decoding_unavailable",
            f"answers cannot be constrained here: {error.message}",
            status=501,
            kind="server_error",
            hint=error.hint,
        ) from error


class Guide:
    """A vocabulary as the library wants it, made once, when it is first needed; for any number of threads."""

    def __init__(self, vocabulary: Vocabulary, marks: tuple[bytes, ...]) -> None:
        """Args:
        vocabulary: the package.
        marks: texts that are part of the grammar only as whole tokens, where the vocabulary has one for them.
        """
        config = vocabulary.config
        self.vocab_size = config.vocab_size
        self.stop_ids = config.stop_ids
        self.marks = {mark: token for mark in marks if (token := _added_token(vocabulary, mark)) is not None}
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._made: tuple[LLTokenizer, LLParserLimits] | None = None

    def prepare(self) -> None:
        """Makes it now; for 157,000 tokens 1 to 3 seconds in which no other Python thread runs."""
        self._prepared(load_library())

    def compile(self, grammar: str) -> Matcher:
        """A matcher at the start of a grammar in the library's dialect of Lark; `is_error` says whether it compiled."""
        library = load_library()
        tokenizer, limits = self._prepared(library)
        made: list[Matcher] = []

        def work() -> None:
            made.append(library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits))

        # The library follows a schema recursively and would end the process where the stack ends.
        thread = threading.Thread(target=work, name="grammar")
        with self._lock:
            before = threading.stack_size(_STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join()
        return made[0]

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text, added tokens recognised."""
        return self._vocabulary.tokenize(text)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token."""
        return self._vocabulary.token_bytes(token)

    def _prepared(self, library: ModuleType) -> tuple[LLTokenizer, LLParserLimits]:
        with self._lock:
            if self._made is None:
                tokens = _Tokens(self._vocabulary, self.marks.values())
                limits = library.LLParserLimits(**_LIMITS, verbose_errors=False)
                self._made = (library.LLTokenizer(tokens), limits)
                tokens.tokens.clear()  # the library has its own copy
            return self._made


class _Tokens:
    """The attributes that `llguidance.LLTokenizer` reads of a `TokenizerWrapper`."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, marks: object) -> None:
        config = vocabulary.config
        count = config.token_count
        special = {token for token in range(count) if vocabulary.token_is_special(token)}
        # Rows beyond the real tokens are empty, and an empty token is never allowed.
        self.tokens = [vocabulary.token_bytes(token) for token in range(count)] + [b""] * (config.vocab_size - count)
        self.special_token_ids = sorted(special.union(marks, config.stop_ids))  # type: ignore[arg-type]
        self.eos_token_id = config.stop_ids[0]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids of text that the grammar leaves no choice about; the library sends valid UTF-8 only."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._vocabulary.tokenize(text, special=False)


def _added_token(vocabulary: Vocabulary, mark: bytes) -> int | None:
    token = vocabulary.token_find(mark)
    return token if token is not None and vocabulary.tokenize(mark.decode()) == [token] else None
