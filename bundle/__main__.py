"""`python -m bundle`: shows the plan of the portable build, or runs it."""

from __future__ import annotations

import sys

from bundle.cli import main

if __name__ == "__main__":
    sys.exit(main())
