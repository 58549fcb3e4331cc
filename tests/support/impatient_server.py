"""`mindnano-infer` with clocks that run out soon: `python -m tests.support.impatient_server [options]`."""

from __future__ import annotations

import sys

from launcher.cli import main
from launcher.server.bodies import BodyLimits
from launcher.server.connections import ConnectionLimits

HEAD_SECONDS = 1.0
BODY_SECONDS = 1.0
WRITE_SECONDS = 1.0


def hurry() -> None:
    """Shortens the defaults of this process."""
    limits = ConnectionLimits.__init__.__kwdefaults__
    limits |= {"head_seconds": HEAD_SECONDS, "body_seconds": 2 * BODY_SECONDS, "write_seconds": WRITE_SECONDS}
    BodyLimits.__init__.__kwdefaults__["seconds"] = BODY_SECONDS


if __name__ == "__main__":
    hurry()
    sys.exit(main())
