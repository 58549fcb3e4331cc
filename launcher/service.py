"""`--print-unit`: a systemd unit that runs the server with the options of this call."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import UsageError
from launcher.options.parse import Options
from launcher.options.table import BY_NAME, Command, Value
from launcher.system import SystemView

_STOP_MARGIN = 15
_UNIX = "unix:"
_PATH_SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%"}
_SPECIAL = {**_PATH_SPECIAL, "$": "$$"}  # of a command, where variables are put in
# What systemd makes for the unit; PrivateTmp gives it folders for temporary files too.
_OWN_FOLDERS = tuple(map(Path, ("/var/lib/mindnano", "/var/cache/mindnano", "/run/mindnano", "/tmp", "/var/tmp")))


def unit(options: Options, system: SystemView, program: tuple[str, ...] | None = None) -> str:
    """The text of the unit.

    Only what was given on the command line goes into it: files and defaults are read again when the unit starts.

    Args:
        options: the options.
        system: tells which of the groups that own the NPU's nodes exist; systemd refuses a unit that names another.
        program: the words that start this program; by default as this process was started.

    Raises:
        UsageError: a value holds a line break or another control character, which a unit cannot carry, or there is an
            API key, which everybody on the machine could read there.
    """
    words = [*(program or own_command()), f"--{Command.SERVE.value}"]
    for name, setting in options.settings.items():
        option = BY_NAME[name]
        serves = not option.commands or Command.SERVE in option.commands
        if setting.origin != "command line" or not serves:
            continue
        if option.secret:
            raise UsageError(
                "unit-secret",
                f"--{name} would stand in the unit, which every user of the machine can read",
                hint=f"write it into a file that only root can read, and give --{name}-file FILE",
            )
        if option.is_flag:
            words.append(f"--{name}" if setting.value else f"--no-{name}")
        elif isinstance(setting.value, tuple):
            words += [word for value in setting.value for word in (f"--{name}", value)]
        else:
            words += [f"--{name}", _absolute(setting.value)]
    command = " ".join(_quoted(word) for word in words)
    existing = {line.partition(":")[0] for line in (system.read("/etc/group") or "").splitlines()}
    groups = " ".join(name for name in ("video", "render") if name in existing)
    written = _written_folders(options)
    writable = f"ReadWritePaths={' '.join(written)}\n" if written else ""
    membership = f"SupplementaryGroups={groups}\n" if groups else ""
    stop_seconds = math.ceil(options.serving.drain_timeout) + _STOP_MARGIN
    return f"""\
# mindnano-infer as a service. To install it:
#   mindnano-infer --print-unit [options] | sudo tee /etc/systemd/system/mindnano-infer.service
#   sudo systemctl daemon-reload && sudo systemctl enable --now mindnano-infer
# It runs as a user of its own, which must be able to read the model: /var/lib/mindnano/models is a good place.
[Unit]
Description=mindnano-infer: Ling-3.0 inference server
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={command}
Restart=on-failure
RestartSec=5
# A large model takes a while to load.
TimeoutStartSec=900
# Stopped by SIGTERM, with everything finished and saved.
SuccessExitStatus=143
# 2 usage, 3 device, 4 package, 8 trust: starting again would not help.
RestartPreventExitStatus=2 3 4 8
DynamicUser=yes
{membership}StateDirectory=mindnano
CacheDirectory=mindnano
RuntimeDirectory=mindnano
Environment=XDG_CACHE_HOME=/var/cache XDG_DATA_HOME=/var/lib
LimitNOFILE=65536
OOMScoreAdjust=200
# What runs gets --drain-timeout to finish; conversations are saved after that.
TimeoutStopSec={stop_seconds}
NoNewPrivileges=yes
ProtectSystem=strict
{writable}ProtectHome=read-only
PrivateTmp=yes

[Install]
WantedBy=multi-user.target"""


def own_command() -> tuple[str, ...]:
    """The words that start this program again, with absolute paths."""
    entry = Path(sys.argv[0])
    if entry.suffix == ".py" or entry.name == "__main__.py":
        return (sys.executable, "-m", "launcher")
    return (str(entry.resolve()) if entry.exists() else sys.executable,)


def _written_folders(options: Options) -> list[str]:
    """Folders outside the unit's own that the server writes to, which systemd must be told; "-" skips a missing one.

    Whether the unit's user may write there is up to the folder's permissions.
    """
    wanted = [options.serving.session_dir] if options.serving.session_dir is not None else []
    wanted += [options.log.parent] if options.log is not None else []
    if options.host.startswith(_UNIX):
        wanted.append(Path(options.host.removeprefix(_UNIX)).parent)
    # Links stay as they are: the unit's own folder is one as soon as it has run.
    folders = sorted({Path(os.path.abspath(folder)) for folder in wanted})  # noqa: PTH100  (takes ".." out)
    return [
        _quoted(f"-{folder}", _PATH_SPECIAL)
        for folder in folders
        if not any(folder.is_relative_to(own) for own in _OWN_FOLDERS)
    ]


def _absolute(value: Value) -> str:
    return str(value.resolve()) if isinstance(value, Path) else str(value)


def _quoted(word: str, special: Mapping[str, str] = _SPECIAL) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in word):
        raise UsageError(
            "unit-value", f"{word!r} cannot stand in a systemd unit", hint="use a name without such characters"
        )
    escaped = "".join(special.get(character, character) for character in word)
    return f'"{escaped}"' if not word or set(word) & set(" '\"\\;") else escaped
