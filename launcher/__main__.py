"""`python -m launcher` is `mindnano-infer`."""

from __future__ import annotations

import sys

from launcher.errors import EXIT_SIGINT


def _run() -> int:
    try:
        from launcher.cli import main  # a Ctrl-C while modules load is no error either

        return main()
    except KeyboardInterrupt:
        return EXIT_SIGINT


if __name__ == "__main__":
    sys.exit(_run())
