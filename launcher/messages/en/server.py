"""English: the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "server-loading": "{url}: loading the model",
    "server-ready": "{url}: ready, model {model}, context {context} tokens, {threads} threads, {simd} kernels",
    "server-lan-open": "warning: {host} is open to other machines without an API key (--allow-lan)",
    "server-key-file-public": "warning: every user of this machine can read the API keys in {path}: chmod 600 it",
    "server-cache": "{cache} MiB may hold other conversations' states (--session-cache-mib)",
    "server-cache-small": "warning: {cache} MiB for other conversations' states hold none that fills the context of "
    "{context} tokens: {needed} MiB would (--session-cache-mib)",
    "server-no-grammar": "warning: {reason}; requests that ask for JSON or for a certain tool get 501",
    "server-stopping": "stopping: what runs gets {seconds:g} seconds to finish; once more ends it at once",
}
