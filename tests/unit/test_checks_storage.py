"""A folder that cannot hold the model or load a library, and is called good; a mount that is taken for another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.checks.mounts import disk_class, mount_of
from launcher.checks.report import Status
from launcher.checks.storage import MODEL_BYTES, Folder, folders, storage_findings
from launcher.host import RealHost, Space
from launcher.messages import Catalogue, Language
from launcher.system import SystemView
from tests.fixtures.boards.builder import Board

ROOT = "22 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n"


def mounted(*lines: str) -> Board:
    return Board().file("/proc/self/mountinfo", ROOT + "".join(lines))


def check(tmp_path: Path, board: Board, **settings: object) -> tuple[str, Status]:
    folder = Folder(role="temporary", path="/tmp", **settings)  # type: ignore[arg-type]
    (found,) = storage_findings(board.build(tmp_path), (folder,))
    return found.slug, found.status


@pytest.mark.parametrize(
    ("flags", "settings", "expected"),
    [
        ("rw,noexec", {"executed": True}, ("storage-temporary-noexec", Status.WARN)),
        ("rw,noexec", {"executed": False}, ("storage-temporary", Status.OK)),
        ("ro", {"written": True}, ("storage-temporary-read-only", Status.WARN)),
        ("ro", {"written": False}, ("storage-temporary", Status.OK)),
        ("rw", {"need": 41 << 30}, ("storage-temporary-full", Status.WARN)),
        ("rw", {"need": 40 << 30}, ("storage-temporary", Status.OK)),
        ("rw,noexecutive", {"executed": True}, ("storage-temporary", Status.OK)),
    ],
)
def test_flags_and_space(tmp_path: Path, flags: str, settings: dict[str, object], expected: tuple[str, Status]) -> None:
    board = mounted(f"31 22 0:27 / /tmp {flags} shared:9 - tmpfs tmpfs rw\n")
    assert check(tmp_path, board, **settings) == expected


def test_file_system_that_is_read_only_itself(tmp_path: Path) -> None:
    board = mounted("31 22 0:27 / /tmp rw,relatime - squashfs /dev/loop0 ro\n")
    assert check(tmp_path, board, written=True)[0] == "storage-temporary-read-only"


def test_folder_that_another_user_owns(tmp_path: Path) -> None:
    board = Board()
    board.host.spaces = {"/": Space(total=64 << 30, free=40 << 30, writable=False)}
    assert check(tmp_path / "a", board, written=True) == ("storage-temporary-read-only", Status.WARN)
    assert check(tmp_path / "b", board, written=False) == ("storage-temporary", Status.OK)


def test_real_port_knows_who_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def access(path: str, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", access)
    space = RealHost().space(str(tmp_path / "to" / "come"))
    assert space is not None
    assert not space.writable
    assert asked == [(str(tmp_path), os.W_OK | os.X_OK)]


def test_environment_without_a_home_has_no_cache(tmp_path: Path) -> None:
    for environ in ({}, {"HOME": ""}, {"HOME": "relative"}, {"XDG_CACHE_HOME": "relative"}):
        found = storage_findings(Board().build(tmp_path / "x"), folders(environ, "/models", has_package=True))
        assert [line.slug for line in found if "cache" in line.slug] == ["storage-cache-none"]


def test_text_says_where_noexec_matters(tmp_path: Path) -> None:
    board = mounted("31 22 0:27 / /tmp rw,noexec - tmpfs tmpfs rw\n")
    (found,) = storage_findings(board.build(tmp_path), (Folder(role="temporary", path="/tmp", executed=True),))
    text = found.text(Catalogue(Language.ENGLISH))
    assert "one-file program unpacks" in text
    assert found.next_step(Catalogue(Language.ENGLISH)).startswith("set TMPDIR")


def test_mount_is_that_of_the_path(tmp_path: Path) -> None:
    system = mounted(
        "31 22 0:27 / /tmp rw - tmpfs tmpfs rw\n",
        "32 22 8:1 / /data rw - ext4 /dev/sda1 rw\n",
        "33 32 0:40 / /data/my\\040models ro - nfs4 nas:/models rw\n",
        "34 31 0:41 / /tmp rw,noexec - tmpfs second rw\n",
        "broken line\n",
        "35 22 8:9 / /data/elsewhere rw\n",
    ).build(tmp_path)
    (tmp_path / "data" / "my models").mkdir(parents=True)
    (tmp_path / "models").symlink_to("/data/my models")
    expected = {
        "/": "/dev/mmcblk0p2",
        "/temporary": "/dev/mmcblk0p2",
        "/data": "/dev/sda1",
        "/data/elsewhere/x": "/dev/sda1",
        "/database": "/dev/mmcblk0p2",
        "/data/my models/a.l3r": "nas:/models",
        "/models/a.l3r": "nas:/models",
        "/tmp/x": "second",
    }
    for path, source in expected.items():
        mount = mount_of(system, path)
        assert mount is not None
        assert mount.source == source, path


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("179:2 / / rw - ext4 /dev/mmcblk0p2 rw", {"/sys/block/mmcblk0/device/type": "MMC\n"}, "emmc"),
        ("179:2 / / rw - ext4 /dev/mmcblk1p2 rw", {"/sys/block/mmcblk1/device/type": "SD\n"}, "sd"),
        ("259:2 / / rw - ext4 /dev/nvme0n1p2 rw", {"/sys/block/nvme0n1/queue/rotational": "0\n"}, "nvme"),
        ("8:2 / / rw - ext4 /dev/sda2 rw", {"/sys/block/sda/queue/rotational": "0\n"}, "ssd"),
        ("8:2 / / rw - ext4 /dev/sda2 rw", {"/sys/block/sda/queue/rotational": "1\n"}, "hdd"),
        ("8:2 / / rw - ext4 /dev/sda2 rw", {"/sys/block/sda/queue/rotational": "perhaps"}, "unknown"),
        ("254:0 / / rw - ext4 /dev/zram1 rw", {"/sys/block/zram1/size": "1"}, "zram"),
        ("0:5 / / rw - overlay overlay rw", {"/sys/block/sda/queue/rotational": "1\n"}, "unknown"),
        ("0:5 / / rw - tmpfs tmpfs rw", {}, "memory"),
        ("0:5 / / rw - nfs4 nas:/x rw", {}, "network"),
        ("8:2 / / rw - ext4 /dev/root rw", {"/sys/block/sda/queue/rotational": "1\n"}, "unknown"),
    ],
)
def test_kind_of_disk(tmp_path: Path, line: str, files: dict[str, str], expected: str) -> None:
    board = Board().file("/proc/self/mountinfo", f"22 1 {line}\n")
    for path, text in files.items():
        board.file(path, text)
    system = board.build(tmp_path)
    mount = mount_of(system, "/")
    assert mount is not None
    assert disk_class(system, mount) == expected


def test_text_names_the_disk_only_where_it_is_known(tmp_path: Path) -> None:
    for number, (line, expected) in enumerate(
        {
            "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw": "ext4 (nvme),",
            "22 1 0:5 / / rw - overlay overlay rw": "overlay,",
            "22 1 0:6 / / rw - tmpfs tmpfs rw": "tmpfs,",
        }.items()
    ):
        board = Board().file("/proc/self/mountinfo", line + "\n").file("/sys/block/nvme0n1/queue/rotational", "0\n")
        (found,) = storage_findings(board.build(tmp_path / str(number)), (Folder(role="temporary", path="/tmp"),))
        for language in Language:
            text = found.text(Catalogue(language)).replace("，", ", ")
            assert expected in text
            assert "unknown" not in text


def test_disk_behind_a_root_without_name_is_found_by_number(tmp_path: Path) -> None:
    board = Board().file("/proc/self/mountinfo", "22 1 8:2 / / rw - ext4 /dev/root rw\n")
    board.file("/sys/block/sda/queue/rotational", "1\n").link("/sys/dev/block/8:2", "../../devices/x/block/sda/sda2")
    system = board.build(tmp_path)
    mount = mount_of(system, "/")
    assert mount is not None
    assert disk_class(system, mount) == "hdd"


def test_folders_follow_the_environment() -> None:
    found = {folder.role: folder for folder in folders({"HOME": "/home/u"}, "/models", has_package=False)}
    assert {role: folder.path for role, folder in found.items()} == {
        "model": "/models",
        "cache": "/home/u/.cache",
        "temporary": "/tmp",
    }
    assert (found["model"].need, found["model"].written) == (MODEL_BYTES, True)
    environ = {"HOME": "/home/u", "XDG_CACHE_HOME": "/c", "TMPDIR": "/t"}
    found = {folder.role: folder for folder in folders(environ, "/models", has_package=True)}
    assert (found["cache"].path, found["temporary"].path) == ("/c", "/t")
    assert (found["model"].need, found["model"].written) == (0, False)


def test_machine_without_mountinfo(tmp_path: Path) -> None:
    board = Board()
    board.host.spaces = {"/": Space(total=1, free=1)}
    assert check(tmp_path, board, need=0) == ("storage-temporary", Status.OK)


def test_this_machine_is_read() -> None:
    mount = mount_of(SystemView(), "/proc/self")
    assert mount is not None
    assert mount.kind == "proc"
