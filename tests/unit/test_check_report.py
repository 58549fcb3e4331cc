"""A text for a bug report that says who or where, or one that says nothing about the machine any more."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import pytest

from engine.errors import BuildError
from launcher.check import run_check
from launcher.checks.redact import Scrubber
from launcher.messages import Catalogue, Language
from launcher.options.parse import parse
from launcher.payload.carried import RUNTIME_VARIABLE
from launcher.system import SystemView
from tests.fixtures.boards import rk3588 as parts
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board
from tests.support.availability import unavailable
from tests.support.demo import require_demo
from tests.support.rknn_stand_in import build_stand_in

SECRETS = (
    "mallory",
    "Mallory",
    "Weiss",
    "zephyr-lab",
    "ZEPHYR-LAB",
    "intra.example",
    "a1b2c3d4e5f60718",
    "S3RI4L-0042",
    "de:ad:be:ef:12:34",
    "DE-AD-BE-EF-12-34",
    "192.168.77.5",
    "2001:db8:77::5",
    "fe80::dead:beef",
    "0f1e2d3c-1111-2222-3333-444455556666",
    "0123456789abcdef0123456789abcdef",
    "/home/",
    "/data/private",
)
HOSTILE = (
    "Mallory Weiss (mallory) at zephyr-lab / ZEPHYR-LAB.intra.example, /home/mallory/x, /home/other/y, "
    "192.168.77.5:9092, 2001:db8:77::5, fe80::dead:beef%eth0, de:ad:be:ef:12:34, DE-AD-BE-EF-12-34, "
    "serial a1b2c3d4e5f60718 S3RI4L-0042 0f1e2d3c-1111-2222-3333-444455556666 0123456789abcdef0123456789abcdef"
)
ENVIRON = {
    "HOME": "/home/mallory",
    "USER": "mallory",
    "LOGNAME": "mallory",
    "HOSTNAME": "zephyr-lab",
    "LD_LIBRARY_PATH": "/home/mallory/lib",
    "TMPDIR": "/home/mallory/tmp",
    "XDG_CACHE_HOME": "/home/mallory/cache",
    "PATH": os.environ.get("PATH", ""),
}


def personal(board: Board) -> Board:
    """The board with its owner's traces in every file that anything is read from."""
    board.file("/proc/sys/kernel/hostname", "zephyr-lab\n").file("/etc/hostname", "zephyr-lab.intra.example\n")
    board.file("/proc/sys/kernel/domainname", "intra.example\n")
    board.file(
        "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nmallory:x:1000:1000:Mallory Weiss,,,:/home/mallory:/bin/sh\n"
    )
    board.file("/etc/group", "root:x:0:\nvideo:x:44:mallory\nrender:x:109:mallory\nmallory:x:1000:\n")
    board.file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    board.file(f"{parts.TREE}/serial-number", "a1b2c3d4e5f60718\0")
    board.file(f"{parts.TREE}/model", f"NanoPi M6 {HOSTILE}\0")
    board.file("/sys/block/mmcblk0/device/serial", "S3RI4L-0042\n").file("/sys/block/mmcblk0/device/type", "MMC\n")
    board.file("/sys/class/net/eth0/address", "de:ad:be:ef:12:34\n")
    board.file("/proc/sys/kernel/osrelease", f"6.1.118-{HOSTILE}\n")
    board.file("/proc/version", f"Linux version 6.1.118 (mallory@zephyr-lab) {HOSTILE}\n")
    board.file("/etc/os-release", f'PRETTY_NAME="Armbian 24.8 {HOSTILE}"\n')
    board.file("/proc/self/cgroup", f"0::/user-mallory/{'zephyr-lab'}\n")
    folder = "/sys/fs/cgroup/user-mallory/zephyr-lab"
    board.file(f"{folder}/memory.max", f"{4 << 30}\n").file(f"{folder}/memory.current", "0\n")
    board.file("/home/mallory/lib/librknnrt.so", f"librknnrt version: 1.4.0 ({'mallory@zephyr-lab'})")
    board.file("/proc/977/comm", "mallory-srv\n").link("/proc/977/fd/5", "/dev/dri/card1")
    for name in ("policy0", "policy4"):
        board.file(f"/sys/devices/system/cpu/cpufreq/{name}/scaling_governor", f"{HOSTILE}\n")
    board.file("/sys/class/devfreq/dmc/governor", f"{HOSTILE}\n")
    board.file("/proc/self/mountinfo", f"22 1 179:2 / / rw - ext4 {'/dev/disk/by-id/S3RI4L-0042'} rw\n")
    log = f"4,90,512331,-;rknpu: module verification failed {HOSTILE}\n4,91,512332,-;RKNPU fdab0000.npu: {HOSTILE}\n"
    return board.file("/dev/kmsg", log)


def report_of(system: SystemView, environ: dict[str, str], capsys: pytest.CaptureFixture[str], *words: str) -> str:
    options = parse([*(words or ("--check",)), "--report"], environ, [])
    run_check(options, environ, Catalogue(Language.CHINESE), system)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_nothing_personal_of_any_board_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    require_demo()
    text = report_of(personal(BOARDS[name]()).build(tmp_path), ENVIRON, capsys)
    for secret in SECRETS:
        assert secret not in text, secret
    assert text.isascii() or "…" in text  # English, with marks for what was left out


def test_paths_and_messages_about_files_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = personal(BOARDS["nanopi_m6"]()).build(tmp_path)
    words = ("--check", "--model", "/data/private/mallory.l3r", "--host", "192.168.77.5")
    text = report_of(system, ENVIRON, capsys, *words)
    for secret in SECRETS:
        assert secret not in text, secret
    assert "package-unusable (package-missing)" in text
    assert "network-lan" in text


def test_what_a_crashing_library_printed_is_in_it_and_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        library = build_stand_in(tmp_path / "built").read_bytes()
    except BuildError as error:
        unavailable(str(error))
    board = personal(BOARDS["nanopi_m6"]()).file("/opt/librknnrt.so", library)
    board.file("/run/lock/.keep", "").remove("/proc/977")
    board.host.machine = platform.machine()
    environ = {
        **ENVIRON,
        RUNTIME_VARIABLE: "/opt/librknnrt.so",
        "RKNN_STAND_IN_FAULT": "abort",
        "RKNN_STAND_IN_SAYS": HOSTILE,
    }
    text = report_of(board.build(tmp_path / "board"), environ, capsys, "--check=deep")
    for secret in SECRETS:
        assert secret not in text, secret
    assert "selftest-signal" in text
    assert "SIGABRT" in text
    assert re.search(r"^      \| .*<user>.*<host>", text, re.MULTILINE)


def test_it_says_what_a_bug_report_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_demo()
    board = BOARDS["orange_pi_5_plus_5_10"]().file("/etc/os-release", 'PRETTY_NAME="Orange Pi 1.2.2 Bookworm"\n')
    board.file("/usr/lib/librknnrt.so", "librknnrt version: 1.5.2 (c6b7b351a@2023-08-23T15:28:22)")
    text = report_of(board.build(tmp_path), {"HOME": "/home/x"}, capsys)
    for fact in (
        "board    Orange Pi 5 Plus",
        "kernel   5.10.160-rockchip-rk3588",
        "system   Orange Pi 1.2.2 Bookworm",
        "libc     glibc 2.36",
        "machine  aarch64",
        "dmc 2112/2112 MHz",
        "fdab0000.npu 1000/1000 MHz",
        "npu-driver-domains: ",
        "0.8.8",
        "librknnrt 1.5.2 at",
        "ok    limits   limits-files: open files: 1024",
        "ready: yes, exit code 0, backend cpu, largest context unknown",
    ):
        assert fact in text, fact
    assert re.search(r"^memory   1\d\.\d GiB, 1\d\.\d GiB available$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "text",
    [
        "librknnrt 2.3.2 (429f97ae6b@2025-04-09T09:09:27)",
        "kernel 6.1.43-15-rk2312 built 12:34:56",
        "npu@fdab0000 0x46495245 1000:1000",
        "std::bad_alloc at libc.so.6+0x1c",
        "sha256 1b278f220361ffda3a91ba69affb650c2dd8acaa295b6883da8d6ea966fb8e32",
        "version 300.400.500.600",
        "Raspberry Pi 5, pipe, spi0",
        "/dev/dri/card1 root:video 0660",
    ],
)
def test_facts_stay(text: str) -> None:
    assert Scrubber.of({"USER": "pi", "HOME": "/home/pi"}, SystemView(root=Path("/nonexistent")))(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pi@board", "<user>@<host>"),
        ("PI and Board.local", "PI and <host>.local"),
        ("at 10.0.0.1:80, [::1]:80", "at <address>:80, [<address>]:80"),
        ("::ffff:10.0.0.1", "::ffff:<address>"),
        ("fe80::1%eth0.", "<address>."),
        ("aa:bb:cc:dd:ee:ff", "<address>"),
        ("/home/pi/x /home/someone else /Users/z", "<home>/x <home> else <home>"),
        ("(10.1.2.3)", "(<address>)"),
        ("550e8400-e29b-41d4-a716-446655440000", "<serial>"),
    ],
)
def test_traces_go(tmp_path: Path, text: str, expected: str) -> None:
    system = Board().file("/proc/sys/kernel/hostname", "board\n").build(tmp_path)
    assert Scrubber.of({"USER": "pi", "HOME": "/home/pi"}, system)(text) == expected


def test_common_names_are_no_secrets(tmp_path: Path) -> None:
    system = Board().file("/proc/sys/kernel/hostname", "localhost\n").file("/etc/machine-id", "0000\n").build(tmp_path)
    text = "root:video on localhost 0000"
    assert Scrubber.of({"USER": "root", "HOME": "/"}, system)(text) == text


def test_long_name_of_a_host_gives_away_its_short_one(tmp_path: Path) -> None:
    scrub = Scrubber.of({"HOME": "/"}, Board().file("/etc/hostname", "attic.intra.example\n").build(tmp_path))
    assert scrub("attic.intra.example, attic") == "<host>, <host>"


def test_odd_names_are_no_patterns(tmp_path: Path) -> None:
    system = Board().file("/proc/sys/kernel/hostname", "a(b\\\n").build(tmp_path)
    scrub = Scrubber.of({"USER": ".*", "HOME": "/home/[x"}, system)
    assert scrub("hello .* world") == "hello <user> world"
    assert scrub("a(b\\ c") == "<host> c"


def test_this_machine_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    require_demo()
    host = platform.node()
    text = report_of(SystemView(), dict(os.environ), capsys)
    if host and host != "localhost":
        assert not re.search(rf"\b{re.escape(host)}\b", text)
    assert str(Path(__file__).resolve().parents[2]) not in text
