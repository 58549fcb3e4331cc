"""A download in a process of its own: ``download_child SOURCE FOLDER SHA256 [LARGEST_FILE]``."""

from __future__ import annotations

import os
import resource
import sys

from launcher.download.download import run_download
from launcher.errors import MindnanoError
from launcher.messages import Catalogue, Language
from launcher.options.parse import parse
from launcher.system import SystemView


def main(source: str, folder: str, digest: str, largest: str = "") -> int:
    """Runs it, says what the error is on stderr, and returns the exit code."""
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), int(largest)))
    options = parse(["--download", source, "--model-dir", folder, "--sha256", digest], {}, files=())
    texts = Catalogue(Language.ENGLISH)
    try:
        return run_download(options, dict(os.environ), texts, SystemView())
    except MindnanoError as error:
        print(texts.error(error), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
