"""The first start, when there is no model yet: says what there is to get, asks, and gets it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from launcher.messages import Catalogue
from launcher.model_store import model_folder, model_missing
from launcher.options import Options
from launcher.progress import format_bytes
from launcher.sources import is_offline
from launcher.system import SystemView
from launcher.terminal import is_terminal

if TYPE_CHECKING:  # they bring the HTTP library, which a start with a model does not need
    from launcher.publisher import Publisher
    from launcher.transport import Surroundings

_YES: Final = frozenset({"y", "yes", "是", "好"})


def first_start(
    options: Options,
    environ: Mapping[str, str],
    texts: Catalogue,
    system: SystemView,
    *,
    surroundings: Surroundings | None = None,
    publisher: Publisher | None = None,
    ask: Callable[[], str] | None = None,
) -> Path:
    """Offers the publisher's model on a terminal and downloads it when the answer is yes; returns its path.

    Args:
        surroundings: as for `Download`.
        publisher: as for `Download`.
        ask: reads the answer; by default a line of stdin.

    Raises:
        PackageError: there is no terminal to ask on, nothing to offer, or the answer is no; the hint names the ways on.
        NetworkError, ResourceError, BusyError, TrustError, Cancelled: as `Download`.
    """
    from launcher.download import Download
    from launcher.publisher import read_publisher

    folder = model_folder(options, environ)
    owner = read_publisher() if publisher is None else publisher
    talks = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    if not talks or owner.repository is None or options.offline or is_offline(environ):
        raise model_missing(folder)
    with Download(options, environ, texts, system, surroundings=surroundings, publisher=owner) as download:
        offer = download.offer()
        unknown = texts("unknown")
        _say(
            texts(
                "first-start",
                source=offer.source,
                name=offer.target.name,
                size=unknown if offer.size is None else format_bytes(offer.size),
                folder=offer.target.parent,
                free=unknown if offer.free is None else format_bytes(offer.free),
            )
        )
        sys.stderr.write(texts("first-start-ask"))
        sys.stderr.flush()
        answer = (sys.stdin.readline() if ask is None else ask()).strip().lower()
        if answer not in _YES:
            raise model_missing(folder)
        return download.run()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
