"""Who publishes this build: the default repository and the keys that sign its releases.

`launcher/integrity/publisher.json` is part of the program. As it is committed it names nobody; a publisher fills it in
before building, e.g.::

    "repository": "ORGANISATION/NAME",
    "keys": [
      {"use": "release", "key": "RW..."},
      {"use": "recovery", "key": "RW..."}
    ]

Each key is the second line of a minisign .pub file. With a recovery key, whose secret half lies elsewhere, a lost or
stolen release key can be replaced without a new program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import InternalError, PackageError, TrustError
from launcher.integrity.manifest import require_schema
from launcher.integrity.release_files import read_capped
from launcher.integrity.signature import KeyUse, PublicKey, parse_public_key
from launcher.integrity.strict_json import Fields, invalid, parse_object
from launcher.payload.carried import PUBLISHER, carried_bytes

FILE_NAME: Final = "publisher.json"
SCHEMA: Final = "mindnano.publisher"
VERSION: Final = 1
MAX_BYTES: Final = 64 << 10
MAX_KEYS: Final = 8
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """`repository` is ORGANISATION/NAME on Hugging Face, None where the build names none."""

    repository: str | None
    keys: tuple[PublicKey, ...]


def read_publisher(path: Path | None = None) -> Publisher:
    """The publisher that this build carries.

    Args:
        path: another file of the same format.

    Raises:
        InternalError: the build carries none, or it is malformed.
    """
    carried = carried_bytes(PUBLISHER) if path is None else None
    path = Path(__file__).with_name(FILE_NAME) if path is None else path
    try:
        data = read_capped(path, MAX_BYTES) if carried is None else carried
        if data is None:
            raise invalid(str(path), "there is no such file")
        return parse_publisher(data, str(path))
    except (PackageError, TrustError) as error:
        raise InternalError(
            "publisher-invalid", f"this build does not say who publishes it: {error.message}", hint="build it again"
        ) from error


def parse_publisher(data: bytes, where: str) -> Publisher:
    """The publisher in these bytes.

    Raises:
        PackageError, TrustError: they are malformed.
    """
    fields = parse_object(data, where)
    require_schema(fields, SCHEMA, VERSION, where)
    repository = fields.text("repository", pattern=_REPOSITORY) if fields.has("repository") else None
    keys = []
    for index, entry in enumerate(fields.array("keys", limit=MAX_KEYS)):
        item = Fields(entry, f"{where}: keys[{index}]")
        use = item.text("use")
        if use not in {kind.value for kind in KeyUse}:
            raise item.fail("use", " or ".join(kind.value for kind in KeyUse))
        keys.append(parse_public_key(item.text("key"), KeyUse(use)))
        item.finish()
    fields.finish()
    if len({key.identifier for key in keys}) != len(keys):
        raise invalid(where, "two keys have the same id")
    return Publisher(repository=repository, keys=tuple(keys))
