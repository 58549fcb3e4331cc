"""`mindnano-infer` with clocks that run out soon: `python -m tests.support.impatient_server [options]`."""

from __future__ import annotations

import sys
from typing import Any

from launcher.cli import main
from launcher.server.bodies import BodyLimits
from launcher.server.connections import ConnectionLimits

HEAD_SECONDS = 1.0
BODY_SECONDS = 1.0
WRITE_SECONDS = 1.0


def hurry() -> None:
    """Shortens the defaults of this process."""
    _defaults(ConnectionLimits).update(
        head_seconds=HEAD_SECONDS, body_seconds=2 * BODY_SECONDS, write_seconds=WRITE_SECONDS
    )
    _defaults(BodyLimits).update(seconds=BODY_SECONDS)


def _defaults(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = kind.__init__.__kwdefaults__
    return found


if __name__ == "__main__":
    hurry()
    sys.exit(main())
