"""The main module of the portable program leaves a door open through which a file becomes a module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOK = """
import json, sys
from bundle.program import close_folders
close_folders()
def found(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
print(json.dumps({
    "beside": found("planted"),
    "in a package": found("json.planted"),
    "built in": found("xxsubtype"),
    "frozen": found("__hello__"),
    "path": sys.path,
    "hooks": len(sys.path_hooks),
    "executable": sys.executable,
    "prefixes": sorted({sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}),
}))
"""


def test_after_it_only_what_is_inside_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("")
    planted = f"import sys, json\nsys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
    planted += f"json.__path__.append({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", planted + LOOK], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "beside": False,
        "in a package": False,
        "built in": True,
        "frozen": True,
        "path": [],
        "hooks": 0,
        "executable": "/proc/self/exe",
        "prefixes": ["/proc/self/exe"],
    }


def test_importing_it_changes_nothing() -> None:
    before = list(sys.meta_path), list(sys.path), sys.executable
    import bundle.program  # noqa: F401

    assert (list(sys.meta_path), list(sys.path), sys.executable) == before
