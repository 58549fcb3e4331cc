"""What several tests of notices share: the owners of a whole build."""

from __future__ import annotations

import pytest

from notices.collect import Ownership, assign_owners
from notices.components import load_components
from tests.bundle.inventories import inventory, with_known_terms


@pytest.fixture(scope="session")
def ownership() -> Ownership:
    return assign_owners(inventory(), with_known_terms(load_components()))
