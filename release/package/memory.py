"""What sessions of a package cost, as a few coefficients that the engine's own plan gives; nothing is measured.

A session with a context of C tokens (1024 at least: a whole step of prefill), a cache format, N prefix checkpoints and
T threads has, when it is full,

    fixed + N * prefix_checkpoint + T * thread + C * (token_FORMAT + T * token_and_thread)

bytes resident, and `idle` bytes before its first token; with the MTP layer in use, `mtp_fixed` more of both, and
C * `mtp_token_FORMAT` more when it is full. It differs from the plan by less than a KiB, where buffers are aligned.
The program around the engine comes on top.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import launcher
from launcher.engine import Package
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from launcher.integrity.model_info import MemoryFigures

SOURCE: Final = f"planned by the engine of mindnano-infer {launcher.__version__}; without the program around it"


def memory_of(package: Package) -> MemoryFigures:
    """The coefficients of a package.

    Raises:
        EngineError, PackageError: as the engine says.
    """
    last = package.config.max_context
    first = max(1, last // 2)
    engine = EngineOptions(threads=1)
    long = SessionOptions(context=last, kv_type=KvType.BF16, checkpoints=0)

    def full(engine: EngineOptions, session: SessionOptions) -> int:
        return package.plan(engine, session).full_bytes

    def slope(engine: EngineOptions, kind: KvType) -> int:
        """Bytes per token; rounded up where alignment leaves a rest, so that no context is planned too small."""
        session = replace(long, kv_type=kind)
        grown = full(engine, session) - full(engine, replace(session, context=first))
        return -(-grown // max(1, last - first))

    second = replace(engine, threads=2)
    scores = slope(second, KvType.BF16) - slope(engine, KvType.BF16)
    thread = full(second, long) - full(engine, long) - last * scores
    tokens = {kind: slope(engine, kind) - scores for kind in KvType}
    fixed = full(engine, long) - last * (tokens[KvType.BF16] + scores) - thread
    terms = {
        "idle": package.plan(engine, long).idle_bytes,
        "fixed": fixed,
        "prefix_checkpoint": -(-(full(engine, replace(long, checkpoints=8)) - full(engine, long)) // 8),
        "thread": thread,
        "token_and_thread": scores,
        **{f"token_{kind.label}": count for kind, count in tokens.items()},
    }
    if package.has_mtp:
        drafting = replace(engine, mtp=True)
        more = {kind: slope(drafting, kind) - tokens[kind] - scores for kind in KvType}
        terms["mtp_fixed"] = full(drafting, long) - full(engine, long) - last * more[KvType.BF16]
        terms |= {f"mtp_token_{kind.label}": count for kind, count in more.items()}
    return MemoryFigures(source=SOURCE, terms=terms)
