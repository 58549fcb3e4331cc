"""Settings that all tests share."""

from __future__ import annotations

import signal

from hypothesis import settings

# No deadline: a busy machine is no failure. Derandomised: a run can be repeated.
settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and every program that a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
