#!/usr/bin/env python3
"""The same as `mindnano quantize`."""

from door import enter

enter("quantize")
