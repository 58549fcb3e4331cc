"""Names, documents, servers and settings made to mislead: what they must not reach, and must not cost."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import requests

from launcher.cli import main
from launcher.download.fetch import Expected, Fetch, Reporting
from launcher.download.http_errors import TryAgain, cut, retry_after
from launcher.download.part_file import PartFile, write_atomically
from launcher.download.redirects import RedirectPolicy
from launcher.download.sources import UrlSource, parse_source
from launcher.download.transport import Surroundings, Transport
from launcher.engine import Package
from launcher.errors import NetworkError, PackageError, UsageError
from launcher.integrity.release_files import clashing_paths
from launcher.integrity.state_file import StateFile
from launcher.integrity.strict_json import repeated_key
from launcher.memory_plan import read_usage
from launcher.messages import Catalogue, Language
from launcher.model import metadata_of
from launcher.options.layers import merge
from launcher.payload.commands import unpack_member
from launcher.payload.file import Member, Payload
from launcher.progress import Progress
from launcher.system import SystemView

ESCAPE = "a\x1b]0;mine\x07\x9b2J\u202e\nok"


# -- what reaches a terminal --


@pytest.mark.parametrize("language", list(Language))
def test_no_fact_and_no_error_steers_a_terminal(language: Language) -> None:
    texts = Catalogue(language)
    shown = [
        texts("contexts-title", name=ESCAPE, available="1 GiB"),
        texts("download-from", source="x", path=Path(ESCAPE)).replace("\n", ""),
        texts.error(PackageError("no-such-slug", ESCAPE, hint=ESCAPE)).replace("\n  ", ""),
    ]
    for text in shown:
        assert not set(text) & set("\x1b\x07\x9b\u202e\n"), ascii(text)
        assert "\N{REPLACEMENT CHARACTER}" in text


def test_names_of_packages_do_not_steer_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "a\x1b[31m\x9b2J.l3r"
    package.write_bytes(b"no package" * 40)
    assert main(["--model", str(package), "--list-contexts"]) == 4
    printed = capfd.readouterr()
    assert not set(printed.out + printed.err) & {"\x1b", "\x9b"}, ascii(printed)


def test_name_of_a_package_that_is_no_utf8(tmp_path: Path) -> None:
    package = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.l3r"))
    package.write_bytes(b"no package" * 40)
    with pytest.raises(PackageError, match=r"not an \.l3r package"):
        Package(package)


# -- what a document may cost --


def test_a_key_that_occurs_twice_among_many_is_found_in_one_pass() -> None:
    """Comparing each key with all before it takes hours for a document of 8 MiB."""
    compared = 0

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    pairs: list[tuple[str, object]] = [(Key(f"k{index}"), 0) for index in range(500)]
    assert repeated_key(pairs) is None
    assert repeated_key([*pairs, (Key("k499"), 0), (Key("k3"), 0)]) == "k499"
    assert compared < 10 * len(pairs)


@pytest.mark.parametrize(
    ("paths", "clash"),
    [
        (["a", "b", "a/b/c"], ("a", "a/b/c")),
        (["a/b/c", "b", "a"], ("a/b/c", "a")),
        (["a", "a b", "a!b", "a-b", "A/x"], ("a", "A/x")),
        (["x", "B", "b"], ("B", "b")),
        (["a/b", "a/c", "ab", "a0/b"], None),
    ],
)
def test_clashes_are_found_in_the_order_of_the_list(paths: list[str], clash: tuple[str, str] | None) -> None:
    assert clashing_paths(paths) == clash


def test_deep_names_take_no_more_memory_than_the_list() -> None:
    paths = [f"{index:05d}/" + "a/" * 500 + "b" for index in range(400)]
    tracemalloc.start()
    try:
        assert clashing_paths(paths) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * sum(map(len, paths))


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff"])
def test_metadata_of_a_package_that_is_no_json(data: bytes) -> None:
    package = SimpleNamespace(section=lambda _kind: data, path="p.l3r")
    with pytest.raises(PackageError, match="is not JSON"):
        metadata_of(cast(Package, package))


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "0x" + "f" * 9000, "[0x" + "f" * 9000 + "]", "{a=" * 5000])
def test_configuration_that_cannot_be_read_is_an_error_of_the_file(value: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"context = {value}\n")
    with pytest.raises(UsageError, match=re.escape(str(path))):
        merge({}, {}, [path])


@pytest.mark.parametrize("number", ["\u00b2", "\u0663", "9" * 5000, "-1", ""])
def test_memory_of_this_process_in_numbers_that_are_none(number: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"VmRSS:\t{number} kB\nVmHWM:\t8 kB\n")
    assert read_usage(SystemView(root=tmp_path)) is None


# -- what a server may say --


@pytest.mark.parametrize("zone", ["+99999999999999999999", "-99999999999999999999", "+2460", "x"])
def test_pause_with_an_endless_zone_is_no_crash(zone: str) -> None:
    assert retry_after(f"Mon, 01 Jan 2024 00:00:00 {zone}", datetime.now(UTC)) in {None, 0.0}


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1\\.example.com/x",
        "https://169.254.169.254\\x/",
        "//127.0.0.1\\.example.com/x",
        "https://[2001:db8::1]\\.example.com/",
        "https://127.0.0.1;.example.com/",
        "https://a b/",
    ],
)
def test_redirect_whose_host_is_read_in_two_ways_is_not_followed(location: str) -> None:
    policy = RedirectPolicy({}, lambda _host: [], hub=None, plain_http=False)
    with pytest.raises(NetworkError, match="not followed"):
        policy.next(["https://example.com/a"], location)


@pytest.mark.parametrize("host", ["example.com", "xn--bcher-kva.example:8443", "[2001:db8::1]:443", "93.184.215.14"])
def test_redirect_to_an_ordinary_host_is_followed_there(host: str) -> None:
    policy = RedirectPolicy({}, lambda _host: [], hub=None, plain_http=False)
    target = policy.next(["https://elsewhere.example/a"], f"https://{host}/x")
    asked = requests.Request("GET", target).prepare().url
    assert asked == f"https://{host}/x"


def test_source_that_only_looks_like_this_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="no name and no address"):
        parse_source("http://example.com\\.localhost/x.l3r", {})


@pytest.mark.parametrize("name", ["a%00b", "%1b%5b2J", "a" * 300, "%c2%9b"])
def test_folder_of_a_server_whose_name_no_folder_can_have(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a folder"):
        parse_source(f"https://example.com/{name}/", {})


@pytest.mark.parametrize("url", ["https://example.com/%2e%2e/", "https://example.com/", "https://[2001:db8::1]/"])
def test_folder_of_a_server_stays_usable(url: str) -> None:
    assert isinstance(parse_source(url, {}), UrlSource)


def test_a_server_fills_no_screen() -> None:
    """Headers may be 64 KiB long each."""
    policy = RedirectPolicy({}, lambda host: ["10.0.0.1"] if "inside" in host else [], hub=None, plain_http=False)
    with pytest.raises(NetworkError) as refused:
        policy.next(["https://example.com/a"], f"https://inside.example/{'a' * 60_000}")
    assert len(refused.value.message) < 500
    assert len(cut("example.com", "\x1b" * 60_000).error.message) < 500


# -- what the environment may hold --


@pytest.mark.parametrize(
    "proxy",
    [
        "http://user:geheim@[bad:3128",
        "http://user:geheim@127.0.0.1:99999",
        "http://user:geheim@127.0.0.1:abc",
        "http://user:geheim@127.0.0.1:1",
        "http://user:geheim#geheim@127.0.0.1:1",
        "http://user:geheim geheim@127.0.0.1:1",
        "http://user:geheim\\geheim@127.0.0.1:1",
        "user:geheim@127.0.0.1:99999",
        "http:///user:geheim",
        "socks5://user:geheim@127.0.0.1:1",
    ],
)
def test_password_of_a_proxy_is_in_no_error(proxy: str) -> None:
    with Transport({"https_proxy": proxy}, Surroundings()) as transport:
        try:
            transport.open("https://example.invalid/x")
        except TryAgain as again:
            message = again.error.message + again.error.hint
        except NetworkError as error:
            message = error.message + error.hint
    assert "proxy" in message
    assert "geheim" not in message


# -- what lies in a folder --


def _open_files() -> int:
    return len(tuple(Path("/proc/self/fd").iterdir()))


def test_damaged_state_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    before = _open_files()
    assert StateFile(tmp_path / "state.json").read() is None
    assert _open_files() == before


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".list.{os.getpid()}.tmp").symlink_to(victim)
    write_atomically(tmp_path / "list", b"new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "list").is_symlink()
    assert (tmp_path / "list").read_bytes() == b"new"


def test_pipe_in_a_release_does_not_hold_a_copy_up(tmp_path: Path) -> None:
    pipe = tmp_path / "a.l3r"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # else a reader that waits would hang this test
    nothing = Reporting(start=lambda *_: Progress("", 0), retry=lambda *_: None, restart=lambda _: None)
    try:
        with PartFile(tmp_path / "copy.l3r") as part:
            fetch = Fetch(part, Expected(size=1, sha256=None), SystemView(), nothing)
            with pytest.raises(PackageError, match="not a regular file"):
                fetch.copy(pipe)
    finally:
        os.close(writer)


def test_interrupted_unpacking_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    class Interrupted:
        def pieces(self, _offset: int, _size: int) -> Iterator[bytes]:
            yield b"half"
            raise KeyboardInterrupt

    member = Member(name="a", offset=0, size=8, sha256="0" * 64)
    with pytest.raises(KeyboardInterrupt):
        unpack_member(cast(Payload, Interrupted()), member, tmp_path / "a")
    assert not list(tmp_path.iterdir())
