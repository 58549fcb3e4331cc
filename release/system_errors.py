"""What the system refuses where no command expected it, as an error with a message and an exit code of its own."""

from __future__ import annotations

import errno
from typing import Final

from launcher.errors import InternalError, MindnanoError, ResourceError, UsageError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAMES: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_SCARCE: Final = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)


def system_error(error: OSError) -> MindnanoError:
    """The error with its file: 5 for what ran out, 2 for a name that cannot be or may not be used, else 1."""
    place = f" ({error.filename})" if error.filename is not None else ""
    reason = f"{error.strerror or error}{place}"
    if error.errno in _FULL:
        return ResourceError("output-full", f"cannot write: {reason}", hint="Free some space.")
    if error.errno in _SCARCE:
        return ResourceError("system-scarce", reason, hint="Close other programs, then run it again.")
    if error.errno in _NAMES and error.filename is not None:
        return UsageError("system-name", reason, hint="Check the name, or give another one.")
    if error.errno in _DENIED and error.filename is not None:
        return UsageError("system-denied", reason, hint="Check whose it is and what it permits, or give another one.")
    return InternalError("system-error", reason, hint="Check that the file is what the command expects.")
