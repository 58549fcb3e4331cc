"""`python -m launcher` is `mindnano-infer`."""

from __future__ import annotations

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
