"""The built-in model's package and the engine, as scripts/test builds them."""

from __future__ import annotations

from pathlib import Path

from launcher.engine_abi import library_path
from tests.support.availability import unavailable

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "build" / "demo" / "demo.l3r"


def require_demo() -> Path:
    """The package; skips or fails the test where set-up has not made it."""
    if not DEMO.is_file():
        unavailable("the built-in model is not packed; scripts/test packs it")
    if not library_path().is_file():
        unavailable("the engine is not built; scripts/test builds it")
    return DEMO
