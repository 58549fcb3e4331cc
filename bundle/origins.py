"""What the build takes for each pin that the components in `notices/` name: versions, files, digests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bundle.errors import BundleError
from bundle.sources import Source
from notices.collect import Origin
from notices.compilation import normalised_name

_WHEEL: Final = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-[^-]+)?-[^-]+-[^-]+-[^-]+\.whl")
_SDIST: Final = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.tar\.gz")


def archive_origins(sources: Mapping[str, Source]) -> dict[str, Origin]:
    """The source archives of `sources.toml`, as `archive:NAME`, with the corrections that are applied to them."""
    return {
        f"archive:{name}": Origin(
            version=source.version,
            file=source.archive.names[0],
            sha256=source.archive.sha256,
            url=source.archive.url,
            patches=source.patches,
        )
        for name, source in sources.items()
    }


def distribution_origins(files: Iterable[Path]) -> dict[str, Origin]:
    """Wheels and source archives of Python distributions on disk, as `pypi:NAME`.

    Raises:
        BundleError: a file is called like neither, or two are of one distribution.
    """
    origins: dict[str, Origin] = {}
    for path in files:
        found = _WHEEL.fullmatch(path.name) or _SDIST.fullmatch(path.name)
        if found is None:
            raise BundleError("distribution-name", f"{path.name} is called like no wheel and no source archive")
        key = f"pypi:{normalised_name(found['name'])}"
        if key in origins:
            raise BundleError("distribution-name", f"{path.name} and {origins[key].file} are of one distribution")
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        origins[key] = Origin(version=found["version"], file=path.name, sha256=digest)
    return origins
