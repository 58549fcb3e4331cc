"""From logits to a token, and from the bytes of tokens to text."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_float, c_int32
from typing import Any

from launcher import engine_abi as abi
from launcher.engine import Package, Session
from launcher.engine_library import Handle, Library, floats, ids_array, readable_block
from launcher.engine_types import Sampling
from launcher.errors import InternalError


class Sampler(Handle):
    """Picks tokens; equal seeds and logits give equal ids on every machine."""

    _destructor = "l3_sampler_destroy"

    def __init__(self, package: Package, sampling: Sampling) -> None:
        """Raises:
        UsageError: a setting is out of range.
        """
        super().__init__(package.library, package)
        self._vocabulary = package.config.vocab_size
        self.library.call("l3_sampler_create", package.address, byref(sampling.struct()), byref(self._pointer))

    def bias(self, biases: Mapping[int, float]) -> None:
        """From now on adds to the logits of these ids, in place of what was added before; an empty mapping ends it.

        Raises:
            UsageError: no token has such an id, or a bias is not finite; what was added before stays.
        """
        values = (c_float * len(biases))(*biases.values())
        self.library.call("l3_sampler_bias", self.address, ids_array(list(biases)), values, len(biases))

    def sample(self, session: Session, *, reply_length: int = 0, allowed: Any = None) -> int:
        """The next id after the session's last token; the history is its timeline.

        Args:
            session: it has logits.
            reply_length: how many of its last tokens frequency and presence penalty count.
            allowed: None, or bytes or a writable buffer of uint32 words, (vocab_size + 31) // 32 of them: bit i % 32
                of word i // 32 is set where id i may be picked.

        Raises:
            UsageError: nothing is allowed, or the timeline is shorter than the reply.
            InternalError: nothing was evaluated with logits yet, or the buffer is too small.
        """
        history = self.library.functions.l3_session_tokens(session.address)
        return self._pick(session.logits_pointer(), history, session.position, reply_length, allowed)

    def sample_from(
        self, logits: Any, history: Sequence[int] = (), *, reply_length: int = 0, allowed: Any = None
    ) -> int:
        """The same from a writable float32 buffer [vocab_size] and the ids so far."""
        return self._pick(floats(logits, self._vocabulary), ids_array(history), len(history), reply_length, allowed)

    def _pick(self, logits: Any, history: Any, length: int, reply_length: int, allowed: Any) -> int:
        token = c_int32()
        choice = abi.CChoice(history_length=length, reply_length=reply_length)
        choice.logits = ctypes.cast(logits, ctypes.POINTER(c_float))
        choice.history = ctypes.cast(history, ctypes.POINTER(c_int32))
        mask = None if allowed is None else readable_block(allowed)
        if mask is not None:
            needed = (self._vocabulary + 31) // 32 * 4
            if len(mask) < needed:
                raise InternalError("buffer", f"expected {needed} bytes of allowed ids, got {len(mask)}")
            choice.allowed = ctypes.addressof(mask)
        self.library.call("l3_sampler_sample", self.address, byref(choice), byref(token))
        return token.value


class Utf8Stream:
    """Joins token bytes to text; an unfinished code point waits for the next bytes."""

    def __init__(self, library: Library) -> None:
        self._functions = library.functions
        self._stream = abi.CUtf8Stream()

    def push(self, data: bytes) -> str:
        """What can be shown after these bytes."""
        out = ctypes.create_string_buffer(3 * (len(data) + 4))
        written = int(self._functions.l3_utf8_push(byref(self._stream), data, len(data), out))
        return out.raw[:written].decode()

    def finish(self) -> str:
        """Flushes what is held back as U+FFFD."""
        out = ctypes.create_string_buffer(12)
        written = int(self._functions.l3_utf8_finish(byref(self._stream), out))
        return out.raw[:written].decode()
