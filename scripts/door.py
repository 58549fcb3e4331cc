"""From a script's name to the command of `mindnano` that it stands for, whichever Python runs the script."""

import os
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "mindnano"


def enter(command: str) -> NoReturn:
    """Becomes `mindnano COMMAND` with the arguments that were given; exit code 2 where the checkout is not set up."""
    if not PROGRAM.is_file():
        print(f"error (setup): {PROGRAM} does not exist\n  next: run scripts/run once", file=sys.stderr)
        sys.exit(2)
    os.execv(PROGRAM, [str(PROGRAM), command, *sys.argv[1:]])
