"""The error of the portable build."""

from __future__ import annotations

from launcher.errors import MindnanoError


class BundleError(MindnanoError):
    """The portable file cannot be built: a command failed, a tool is missing, or a result is not what it must be."""
