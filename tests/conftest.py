"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a busy machine is no failure. Derandomised: a run can be repeated.
settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")
