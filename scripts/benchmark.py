#!/usr/bin/env python3
"""The same as `mindnano bench`."""

from door import enter

enter("bench")
