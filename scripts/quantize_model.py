#!/usr/bin/env python3
"""The same as `mindnano quantize`."""

import sys

from release.cli import main

sys.exit(main(["quantize", *sys.argv[1:]]))
