#!/usr/bin/env python3
"""The same as `mindnano pack`."""

from door import enter

enter("pack")
