"""The error of the notices."""

from __future__ import annotations

from launcher.errors import MindnanoError


class NoticeError(MindnanoError):
    """A component is not described as it must be, or a build and the components do not fit together."""
