"""From a script's name to the command of `mindnano` that it stands for, whichever Python runs the script."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "mindnano"
SETUP = Path(__file__).resolve().with_name("setup_checkout.py")


def enter(*command: str) -> NoReturn:
    """Becomes `mindnano COMMAND` with the arguments that were given. A fresh checkout is set up first."""
    if not PROGRAM.is_file():
        _set_up()
    os.execv(PROGRAM, [str(PROGRAM), *command, *sys.argv[1:]])


def _set_up() -> None:
    """Exits with the code of the set-up where that fails, with 2 where this Python is too old for it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whichever Python runs the script
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"error (setup): found Python {found}; expected 3.11 or newer", file=sys.stderr)
        print("  next: start the script with a newer one, as in python3.11 SCRIPT", file=sys.stderr)
        sys.exit(2)
    code = subprocess.run([sys.executable, str(SETUP), "run"], check=False).returncode
    if code != 0:
        sys.exit(code)
