#!/usr/bin/env python3
"""The same as `mindnano bundle`."""

from door import enter

enter("bundle")
