#!/usr/bin/env python3
"""The same as `mindnano bench`."""

import sys

from release.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
