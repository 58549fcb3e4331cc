"""A changed llguidance is loaded, or one is loaded from a place that others can change.

The wheel is made of the package that is installed here, so that this machine's Python can load it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from bundle.payload import pack
from launcher.errors import EngineError, RequestError
from launcher.payload import extension
from launcher.payload.carried import LLGUIDANCE
from launcher.payload.extension import LIBRARY, carried_library, library_in
from launcher.payload.file import Payload
from launcher.server import guidance
from tests.bundle.support import ROOT, tiny_elf

CODE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from launcher.payload import extension
from launcher.payload.file import Payload
extension.carried = lambda: Payload(sys.argv[2])
package = extension.import_llguidance({})
again = extension.import_llguidance({}) is package
schema = package.LLMatcher.grammar_from_json_schema('{"type": "integer"}')
class Tokens:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())
matcher = package.LLMatcher(package.LLTokenizer(package.TokenizerWrapper(Tokens())), schema)
mask = matcher.compute_bitmask()
allowed = [token for token in range(257) if mask[token // 8] >> token % 8 & 1]
maps = open("/proc/self/maps").read()
print(json.dumps({"allowed": allowed, "again": again, "memfd": "/memfd:llguidance" in maps,
    "fds": sum("llguidance" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.islink(f"/proc/self/fd/{fd}"))}))
"""


def installed_library() -> bytes:
    (file,) = [file for file in metadata.files("llguidance") or [] if str(file) == LIBRARY]
    return Path(str(file.locate())).read_bytes()


def wheel(library: bytes, recorded: bytes | None = None) -> bytes:
    """A wheel that holds a library and says that it is the recorded one."""
    digest = hashlib.sha256(library if recorded is None else recorded).digest()
    line = f"{LIBRARY},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{len(library)}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(LIBRARY, library)
        archive.writestr("llguidance-1.6.1.dist-info/RECORD", f"{line}\nllguidance-1.6.1.dist-info/RECORD,,\n")
    return stream.getvalue()


def packed(folder: Path, content: bytes) -> Path:
    return pack(tiny_elf(folder), folder / "program", {LLGUIDANCE: content}).path


def test_it_is_loaded_from_memory_and_makes_a_mask(tmp_path: Path) -> None:
    program = packed(tmp_path, wheel(installed_library()))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(ROOT), str(program)], env={}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(map(chr, found["allowed"])) == set("-0123456789")
    assert (found["again"], found["memfd"], found["fds"]) == (True, True, 0)


def test_a_library_that_the_wheel_does_not_list_is_refused() -> None:
    with pytest.raises(EngineError, match="its wheel says") as caught:
        library_in(wheel(b"changed", recorded=b"published"))
    assert caught.value.slug == "llguidance-damaged"
    assert library_in(wheel(b"published")) == b"published"


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + bytes(18), wheel(b"library")[:-40]])
def test_what_is_no_wheel_is_refused(content: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        library_in(content)


def test_a_wheel_that_changed_under_the_program_is_refused(tmp_path: Path) -> None:
    program = packed(tmp_path, wheel(b"library" * 100))
    with Payload(str(program)) as payload:
        place = payload.members[LLGUIDANCE].offset
        with program.open("r+b") as stream:
            stream.seek(place + 50)
            stream.write(b"\0")
        with pytest.raises(EngineError, match="not what the payload's list says"):
            carried_library(payload)


def test_a_program_without_it_says_so(tmp_path: Path) -> None:
    program = pack(tiny_elf(tmp_path), tmp_path / "program", {"a": b"b"}).path
    with Payload(str(program)) as payload, pytest.raises(EngineError, match="carries no llguidance"):
        carried_library(payload)


def test_the_server_says_that_it_cannot_constrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = pack(tiny_elf(tmp_path), tmp_path / "program", {LLGUIDANCE: wheel(b"no library")}).path
    monkeypatch.delitem(sys.modules, extension.COMPILED, raising=False)
    with Payload(str(program)) as payload:
        monkeypatch.setattr(extension, "carried", lambda: payload)
        with pytest.raises(RequestError, match="llguidance cannot be loaded") as caught:
            guidance.load_library()
    assert (caught.value.slug, caught.value.status) == ("constrained_decoding_unavailable", 501)
