"""`--version --json`: what this program is, and what it carries."""

from __future__ import annotations

import platform

from launcher import __version__
from launcher.payload.built_in import start
from launcher.payload.carried import RKNN_RUNTIME, carried, carried_member


def version_document() -> dict[str, object]:
    """The JSON document; `launcher/schemas/version.json` describes it.

    Raises:
        PackageError: the payload contradicts itself.
    """
    own = start()
    return {
        "schema": "mindnano-infer.version",
        "version": 2,
        "program": "mindnano-infer",
        "program_version": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        # The digest is that of the file up to its seal, which the program checks at its start.
        "portable": None if own is None else {"bytes": own.file_bytes, "sealed_sha256": own.sha256},
        "rknn_runtime": _rknn_runtime(),
    }


def _rknn_runtime() -> dict[str, object] | None:
    payload, member = carried(), carried_member(RKNN_RUNTIME)
    if payload is None or member is None:
        return None
    from launcher.npu.rknn_library import version_in

    return {"version": version_in(payload.read(RKNN_RUNTIME))[0], "sha256": member.sha256}
