"""The first start, when there is no model yet: says what there is to get, asks, and gets it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from launcher.download.model_store import model_folder, model_missing
from launcher.download.sources import is_offline
from launcher.messages import Catalogue
from launcher.options.parse import Options
from launcher.progress import format_bytes
from launcher.system import SystemView
from launcher.terminal import is_terminal

if TYPE_CHECKING:  # they bring the HTTP library, which a start with a model does not need
    from launcher.download.transport import Surroundings
    from launcher.integrity.publisher import Publisher

_YES: Final = frozenset({"y", "yes", "是", "好"})


def first_start(
    options: Options,
    environ: Mapping[str, str],
    texts: Catalogue,
    system: SystemView,
    *,
    surroundings: Surroundings | None = None,
    publisher: Publisher | None = None,
    keyboard: TextIO | None = None,
    screen: TextIO | None = None,
) -> Path:
    """Offers the publisher's model on a terminal and downloads it when the answer is yes; returns its path.

    Args:
        surroundings: as for `Download`.
        publisher: as for `Download`.
        keyboard: where the answer comes from; stdin by default.
        screen: where everything is shown; stderr by default.

    Raises:
        PackageError: there is no terminal to ask on, nothing to offer, or the answer is no; the hint names the ways on.
        NetworkError, ResourceError, BusyError, TrustError, Cancelled: as `Download`.
    """
    from launcher.integrity.publisher import read_publisher

    folder = model_folder(options, environ)
    owner = read_publisher() if publisher is None else publisher
    keyboard = sys.stdin if keyboard is None else keyboard
    screen = sys.stderr if screen is None else screen
    if not (is_terminal(keyboard) and is_terminal(screen)):
        raise model_missing(folder)
    if owner.repository is None or options.offline or is_offline(environ):
        raise model_missing(folder)
    from launcher.download.download import Download

    with Download(options, environ, texts, system, surroundings=surroundings, publisher=owner, err=screen) as download:
        offer = download.offer()
        unknown = texts("unknown")
        screen.write(
            texts(
                "first-start",
                source=offer.source,
                name=offer.target.name,
                size=unknown if offer.size is None else format_bytes(offer.size),
                folder=offer.target.parent,
                free=unknown if offer.free is None else format_bytes(offer.free),
            )
        )
        screen.write("\n" + texts("first-start-ask"))
        screen.flush()
        answer = keyboard.readline().strip().lower()
        if answer not in _YES:
            raise model_missing(folder)
        return download.run()
