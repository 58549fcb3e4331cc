"""`--print-unit`: a systemd unit that runs the server with the options of this call."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.errors import UsageError
from launcher.options.layers import SYSTEM_FILE
from launcher.options.parse import Options
from launcher.options.table import BY_NAME, Command, Value
from launcher.system import SystemView

_STOP_MARGIN = 15
_UNIX = "unix:"
_PATH_SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%"}
_SPECIAL = {**_PATH_SPECIAL, "$": "$$"}  # of a command, where variables are put in
# What systemd makes for the unit; PrivateTmp gives it folders for temporary files too.
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
_OWN_FOLDERS = (
    *(Path("/var/lib/mindnano"), Path("/var/cache/mindnano"), Path("/var/log/mindnano"), Path("/run/mindnano")),
    *_TEMPORARY,
)
# Files that root alone may read. systemd hands the unit a copy of each, under this name; it can since version 247, and
# has the specifier %d for their folder only since 251.
_CREDENTIALS = {"api-key-file": "api-keys", "tls-cert": "tls-cert", "tls-key": "tls-key"}
_CREDENTIALS_FOLDER = "${CREDENTIALS_DIRECTORY}"
_UNPRIVILEGED_PORT = 1024


def unit(options: Options, system: SystemView, program: tuple[str, ...] | None = None) -> str:
    """The text of the unit.

    Only what was given on the command line goes into it: files and defaults are read again when the unit starts. The
    names of keys and certificates come from /etc/mindnano/config.toml too, because systemd has to read those files.

    Args:
        options: the options.
        system: tells which of the groups that own the NPU's nodes exist; systemd refuses a unit that names another.
        program: the words that start this program; by default as this process was started.

    Raises:
        UsageError: a value holds a line break or another control character, which a unit cannot carry, the path of a
            key or certificate ends as no such path can, or there is an API key, which everybody on the machine could
            read there.
    """
    program = program or own_command()
    words = [_quoted(word) for word in (*program, f"--{Command.SERVE.value}")]
    credentials = []
    for name, setting in options.settings.items():
        option = BY_NAME[name]
        if name in _CREDENTIALS and isinstance(setting.value, Path) and _reaches_the_unit(setting.origin):
            credentials.append(f"LoadCredential={_CREDENTIALS[name]}:{_plain(_absolute(setting.value))}\n")
            words += [f"--{name}", f"{_CREDENTIALS_FOLDER}/{_CREDENTIALS[name]}"]
            continue
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
            words += [word for value in setting.value for word in (f"--{name}", _quoted(value))]
        else:
            words += [f"--{name}", _quoted(_text(setting.value))]
    existing = {line.partition(":")[0] for line in (system.read("/etc/group") or "").splitlines()}
    groups = " ".join(name for name in ("video", "render") if name in existing)
    written = _written_folders(options)
    quoted = " ".join(_quoted(f"-{folder}", _PATH_SPECIAL) for folder in written)
    writable = f"ReadWritePaths={quoted}\n" if written else ""
    steps = "".join(f"# {step}\n" for step in _before_the_start(options, Path(program[0]), written))
    is_unix = options.host.startswith(_UNIX)
    needs_capability = options.port < _UNPRIVILEGED_PORT and not is_unix
    capability = "AmbientCapabilities=CAP_NET_BIND_SERVICE\n" if needs_capability else ""
    membership = f"SupplementaryGroups={groups}\n" if groups else ""
    stop_seconds = math.ceil(options.serving.drain_timeout) + _STOP_MARGIN
    return f"""\
# mindnano-infer as a service. To install it:
#   mindnano-infer --print-unit [options] | sudo tee /etc/systemd/system/mindnano-infer.service
#   sudo systemctl daemon-reload && sudo systemctl enable --now mindnano-infer
# It runs as a user of its own, which must be able to read the model: /var/lib/mindnano/models is a good place.
{steps}[Unit]
Description=mindnano-infer: Ling-3.0 inference server
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={" ".join(words)}
{"".join(credentials)}Restart=on-failure
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
LogsDirectory=mindnano
RuntimeDirectory=mindnano
Environment=XDG_CACHE_HOME=/var/cache XDG_DATA_HOME=/var/lib
LimitNOFILE=65536
OOMScoreAdjust=200
# What runs gets --drain-timeout to finish; conversations are saved after that.
TimeoutStopSec={stop_seconds}
{capability}NoNewPrivileges=yes
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


def _reaches_the_unit(origin: str) -> bool:
    """Whether a setting from there is one of the unit's as well: it has another home and another environment."""
    return origin in {"command line", str(SYSTEM_FILE)}


def _written_folders(options: Options) -> list[Path]:
    """Folders outside the unit's own that the server writes to, which systemd must be told; "-" skips a missing one."""
    wanted = [options.serving.session_dir] if options.serving.session_dir is not None else []
    wanted += [options.log.parent] if options.log is not None else []
    if options.host.startswith(_UNIX):
        wanted.append(Path(options.host.removeprefix(_UNIX)).parent)
    folders = sorted({_absolute(folder) for folder in wanted})
    return [folder for folder in folders if not _is_within(folder, _OWN_FOLDERS)]


def _before_the_start(options: Options, program: Path, written: list[Path]) -> list[str]:
    """What the unit needs of the machine that it cannot have by itself, for its reader."""
    read = [program, *(path for path in (options.model, options.model_dir, SYSTEM_FILE) if path is not None)]
    steps = []
    for path in map(_absolute, read):
        if _is_within(path, _TEMPORARY):
            steps.append(f"It has a /tmp of its own and does not see {path}: move that elsewhere.")
        elif not _is_within(path, _OWN_FOLDERS) and not _everybody_reads(path):
            steps.append(f"It may not read {path}: let everybody read it and pass through its folders, or move it.")
    if written:
        folders = ", ".join(map(str, written))
        steps.append(f"It writes to {folders}: make its user before the first start, and let that write there:")
        steps.append("  sudo useradd --system --no-create-home mindnano-infer")
        steps.append("Or use /var/lib/mindnano, /var/log/mindnano and /run/mindnano, which it has anyway.")
    if options.host.startswith(_UNIX):
        socket = _absolute(Path(options.host.removeprefix(_UNIX)))
        if _is_within(socket, _TEMPORARY):
            steps.append(f"It has a /tmp of its own, and nobody else sees {socket}: /run/mindnano is a good place.")
        elif options.serving.allow_lan:
            steps.append("The members of its group may use the socket: Group=GROUP below [Service] names another one.")
        else:
            steps.append(
                "Only root may use the socket; with --allow-lan, and Group=GROUP below [Service], a group may."
            )
    return ["".join(character if character.isprintable() else "?" for character in step) for step in steps]


def _everybody_reads(path: Path) -> bool:
    """Whether permissions let every user read it; what does not exist yet keeps nobody out."""
    try:
        status = path.stat()
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
        passable = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return passable and status.st_mode & needed == needed


def _is_within(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _absolute(path: Path) -> Path:
    """Links stay as they are: a certificate's leads to another file once it is renewed, and the unit's own folder is
    one as soon as it has run."""
    return Path("/", os.path.abspath(path).lstrip("/"))  # noqa: PTH100  (takes ".." out)


def _text(value: Value) -> str:
    return str(_absolute(value)) if isinstance(value, Path) else str(value)


def _plain(path: Path) -> str:
    """A path where systemd reads the rest of the line as it is."""
    text = str(path)
    if text.endswith((" ", "\\")):
        raise UsageError("unit-value", f"{text!r} cannot stand in a systemd unit", hint="end the name otherwise")
    return _checked(text).replace("%", "%%")


def _quoted(word: str, special: Mapping[str, str] = _SPECIAL) -> str:
    escaped = "".join(special.get(character, character) for character in _checked(word))
    return f'"{escaped}"' if not word or set(word) & set(" '\"\\;") else escaped


def _checked(word: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in word):
        raise UsageError(
            "unit-value", f"{word!r} cannot stand in a systemd unit", hint="use a name without such characters"
        )
    return word
