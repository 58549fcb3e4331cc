"""What the tests of releases share: keys, a look at a folder, damage."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pytest

from launcher.errors import MindnanoError
from launcher.integrity.publisher import Publisher
from launcher.integrity.signature import KeyUse
from launcher.integrity.verify import verify
from launcher.integrity.verify_report import VerifyReport
from launcher.messages import Catalogue, Language
from tests.support.releases import Signer, publisher

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "launcher" / "schemas" / "verify.json").read_text())
ENGLISH, CHINESE = Catalogue(Language.ENGLISH), Catalogue(Language.CHINESE)
SIGNER, RECOVERY, STRANGER = (Signer.from_seed(number) for number in (1, 2, 3))
TRUSTED = publisher(SIGNER.public(), RECOVERY.public(KeyUse.RECOVERY))
NOBODY = publisher()


def look(folder: Path, home: dict[str, str], by: Publisher = TRUSTED, *, strict: bool = False) -> VerifyReport:
    report = verify(folder, home, ENGLISH, strict=strict, publisher=by, stream=io.StringIO())
    jsonschema.validate(report.document(), SCHEMA)
    assert report.text(CHINESE)
    return report


def failure(folder: Path, home: dict[str, str], by: Publisher = TRUSTED) -> MindnanoError:
    with pytest.raises(MindnanoError) as caught:
        look(folder, home, by)
    return caught.value


def flip(path: Path, place: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
