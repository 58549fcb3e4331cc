"""A page that loads something from elsewhere, breaks its own content policy, lacks a text, or misreads the stream."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

from launcher.messages import zh
from tests.support.availability import unavailable

PAGE = Path(str(files("launcher.server").joinpath("page")))
CHECK = Path(__file__).with_name("page_check.mjs")
MAX_BYTES = 28 * 1024


class Elements(HTMLParser):
    """Collects the tags of a document with their attributes, and the text within scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.inline = ""
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self._within = tag

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"}:
            self.inline += data.strip()


def read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def test_functions_of_the_page_do_what_they_say() -> None:
    node = shutil.which("node")
    if node is None:
        unavailable("node is not installed")
    done = subprocess.run([node, CHECK, PAGE / "page.js"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_page_obeys_its_content_policy() -> None:
    elements = Elements(read("index.html"))
    assert elements.inline == ""
    for tag, attributes in elements.found:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            assert attributes.get(name, "page.css") in {"page.css", "page.js", "data:,"}, tag
    script = read("page.js")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_nothing_is_loaded_from_elsewhere() -> None:
    for name in ("index.html", "page.css", "page.js"):
        assert not re.search(r"(https?:)?//[a-z]|url\(|@import", read(name).replace("// ", "")), name


def test_every_text_of_the_document_exists_and_every_control_has_a_name() -> None:
    script = read("page.js")
    for tag, attributes in Elements(read("index.html")).found:
        for name in ("data-text", "data-label", "data-placeholder"):
            if name in attributes:
                assert re.search(rf"\b{attributes[name]}: \"", script), attributes[name]
        if tag in {"button", "textarea"}:
            assert "data-text" in attributes or "data-label" in attributes


def test_script_finds_the_elements_that_it_names() -> None:
    ids = {attributes["id"] for _, attributes in Elements(read("index.html")).found if "id" in attributes}
    script = read("page.js")
    named = set(re.findall(r"\bat\.(\w+)", script)) | set(re.findall(r"\bat\[\"([\w-]+)\"\]", script))
    assert named
    assert named <= ids


def test_page_stays_small() -> None:
    assert sum(path.stat().st_size for path in PAGE.iterdir()) <= MAX_BYTES


def test_the_page_and_the_program_call_a_token_the_same() -> None:
    texts = [read("page.js"), *(path.read_text(encoding="utf-8") for path in Path(zh.__path__[0]).glob("*.py"))]
    assert "token/秒" in texts[0]
    assert not any("词元" in text for text in texts)
