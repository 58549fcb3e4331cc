"""A page that shows no answer, does not stop, tells nothing of speed and memory, or asks a foreign server."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.node import FOLDER, run_node
from tests.support.server_process import ServerProcess

KEY = "the-key-of-the-page"


def drive(server: ServerProcess, folder: Path, *words: str) -> list[str]:
    """Runs the script; returns the names of the tests that passed. Pictures of the page stay in the folder."""
    done = run_node(FOLDER / "page.mjs", [server.url, str(folder), *words], folder=folder, seconds=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^ok: (.*)$", done.stdout, re.MULTILINE)


def test_the_page_works_in_a_browser(live: ServerProcess, tmp_path: Path) -> None:
    assert len(drive(live, tmp_path)) == 5
    assert {path.name for path in tmp_path.glob("*.png")} == {"answer.png", "writing.png", "chinese.png"}


def test_the_page_asks_for_the_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", "--api-key", KEY, key=KEY) as server:
        folder = tmp_path / "page"
        folder.mkdir()
        assert len(drive(server, folder, KEY)) == 1
        server.wait_idle()
