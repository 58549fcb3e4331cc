"""Settings that all tests share."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# No deadline: a busy machine is no failure. Derandomised: a run can be repeated.
settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")


# Where builds and sources lie on this machine; the other variables of this name are options of the program.
_PLACES = {"MINDNANO_CACHE", "MINDNANO_DEMO_PACKAGE", "MINDNANO_SOURCES"}


def pytest_configure() -> None:
    """Every program that a test starts would inherit the language and the options of whoever runs the tests.

    And that SIGINT is ignored, where a shell has started them in the background.
    """
    os.environ["LC_ALL"] = "C.UTF-8"
    for name in list(os.environ):
        if name.startswith("MINDNANO_") and name not in _PLACES:
            del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
