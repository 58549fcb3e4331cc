"""`python -m release` is `mindnano`."""

from __future__ import annotations

import sys

from release.cli import main

if __name__ == "__main__":
    sys.exit(main())
