#!/usr/bin/env python3
"""The same as `mindnano mtp append`."""

from door import enter

enter("mtp", "append")
