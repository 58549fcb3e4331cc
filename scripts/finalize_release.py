#!/usr/bin/env python3
"""The same as `mindnano finalize`."""

from door import enter

enter("finalize")
