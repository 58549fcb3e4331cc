"""English: what several commands say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "reading": "Reading the prompt",
    "tokens": "tokens",
    "progress-line": "{label}: {percent} % ({details})",
    "progress-of": "{done} of {total}",
    "progress-left": "{time} left",
    "progress-stopped": "{label}: stopped at {percent} %",
    "progress-done": "{label}: done, {amount} in {time}",
    "exit-codes": (
        "0    ok\n"
        "1    internal error\n"
        "2    usage\n"
        "3    device or driver unsupported\n"
        "4    package missing or damaged\n"
        "5    not enough memory or disk\n"
        "6    network or download\n"
        "7    port or instance busy\n"
        "8    signature or trust\n"
        "9    engine could not load\n"
        "10   engine crashed\n"
        "129  stopped by SIGHUP (the terminal went away)\n"
        "130  stopped by SIGINT (Ctrl-C)\n"
        "143  stopped by SIGTERM"
    ),
    "yes": "yes",
    "no": "no",
    "unknown": "unknown",
}
