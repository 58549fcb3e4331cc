"""The main module of the portable program; Nuitka compiles it.

Everything that the program imports is inside it. Finders that look into folders go before anything of the launcher is
imported, so a file beside the program can never become a module of it.
"""

from __future__ import annotations

import sys

PROGRAM = "/proc/self/exe"


def close_folders() -> None:
    """Takes away what imports from folders; built-in, frozen and compiled modules stay."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.path.clear()
    # There is no interpreter in a folder; where a path to start again is needed, it is that of the program. Nothing can
    # lie below it, so what looks for data where Python is installed, as `gettext` does for translations, finds none.
    sys.executable = PROGRAM
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = PROGRAM


if __name__ == "__main__":
    close_folders()
    from launcher.cli import main

    sys.exit(main())
