"""Who may open a device node, and what to tell who may not."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.host import Node
from launcher.system import SystemView

_READ_WRITE = 0o060


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This process: its user by number and name, the groups that it has, and those that /etc/group gives the user."""

    user: int
    name: str
    groups: frozenset[int]
    promised: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuNode:
    """A node of the NPU.

    Attributes:
        path: in /dev.
        owner: name of its user.
        group: name of its group, its number where /etc/group has none.
        gid: number of its group.
        mode: permission bits.
        result: of opening it: ``ok``, the name of an errno, or ``not tried``.
    """

    path: str
    owner: str
    group: str
    gid: int
    mode: int
    result: str

    def show(self) -> str:
        """For a person, e.g. ``/dev/dri/card1 root:video 0660 EACCES``."""
        return f"{self.path} {self.owner}:{self.group} {self.mode:04o} {self.result}"


def describe_node(system: SystemView, path: str, node: Node, result: str) -> NpuNode:
    """The node with the names of its owner and group."""
    return NpuNode(
        path=path,
        owner=_names(system, "/etc/passwd").get(node.owner, str(node.owner)),
        group=_names(system, "/etc/group").get(node.group, str(node.group)),
        gid=node.group,
        mode=node.mode & 0o7777,
        result=result,
    )


def read_identity(system: SystemView) -> Identity:
    """By /proc/self/status, /etc/passwd and /etc/group. An unreadable status is that of nobody in no group."""
    user, groups = -1, set[int]()
    for line in (system.read("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        numbers = [int(word) for word in value.split() if _is_id(word)]
        if name == "Uid" and len(numbers) > 1:
            user = numbers[1]
        elif name in {"Gid", "Groups"}:
            groups.update(numbers)
    login = _names(system, "/etc/passwd").get(user, "")
    promised = set()
    for fields in _records(system, "/etc/group"):
        if login and len(fields) > 3 and login in fields[3].split(",") and _is_id(fields[2]):
            promised.add(int(fields[2]))
    return Identity(user=user, name=login, groups=frozenset(groups), promised=frozenset(promised))


def reason_for_refusal(system: SystemView, nodes: tuple[NpuNode, ...], in_container: bool) -> str:
    """The slug that says why nodes that answered EACCES cannot be opened, and how that is mended."""
    identity = read_identity(system)
    if all(node.gid in identity.groups and node.mode & _READ_WRITE == _READ_WRITE for node in nodes):
        return "npu-access-denied"
    if any(node.mode & _READ_WRITE != _READ_WRITE or node.gid == 0 for node in nodes):
        return "npu-access-root"
    if in_container:
        return "npu-access-container"
    if all(node.gid in identity.groups | identity.promised for node in nodes):
        return "npu-access-login"
    return "npu-access"


def _names(system: SystemView, path: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for fields in _records(system, path):
        if len(fields) > 2 and _is_id(fields[2]):
            found.setdefault(int(fields[2]), fields[0])
    return found


def _records(system: SystemView, path: str) -> list[list[str]]:
    return [line.split(":") for line in (system.read(path) or "").splitlines()]


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 10
