#!/usr/bin/env python3
"""The same as `mindnano pack`."""

import sys

from release.cli import main

sys.exit(main(["pack", *sys.argv[1:]]))
