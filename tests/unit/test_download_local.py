"""A copy that is not verified, a network that is used though it is forbidden, a disk that fills up."""

from __future__ import annotations

import pytest

from launcher.errors import NetworkError, PackageError, ResourceError, UsageError
from launcher.system import SystemView
from tests.support.downloads import (
    NAME,
    PACKAGE,
    Bench,
    SmallDisk,
    digest,
    release,
    serve,
)
from tests.support.fault_server import FaultServer


class TestLocal:
    def test_folder_is_copied_and_proven(self, bench: Bench) -> None:
        source = bench.folder / "stick"
        source.mkdir()
        for name, data in release(PACKAGE).items():
            (source / name).write_bytes(data)
        path = bench.get(str(source))
        assert path == bench.folder / "models" / "stick" / NAME
        assert path.read_bytes() == PACKAGE
        assert (path.parent / "MANIFEST.json").is_file()
        assert not (path.parent / "mindnano-infer").exists()

    def test_damaged_copy_is_not_used(self, bench: Bench) -> None:
        source = bench.folder / "stick"
        source.mkdir()
        for name, data in release(PACKAGE).items():
            (source / name).write_bytes(data)
        (source / NAME).write_bytes(PACKAGE[::-1])
        with pytest.raises(PackageError) as caught:
            bench.get(str(source))
        assert caught.value.slug == "download-damaged"
        assert bench.names() == [f"stick/{NAME}.bad"]

    def test_shorter_file_is_refused_before_the_copy(self, bench: Bench) -> None:
        source = bench.folder / "stick"
        source.mkdir()
        for name, data in release(PACKAGE).items():
            (source / name).write_bytes(data)
        (source / NAME).write_bytes(PACKAGE[:1000])
        with pytest.raises(PackageError) as caught:
            bench.get(str(source))
        assert caught.value.slug == "download-size"

    def test_copy_onto_itself_is_refused(self, bench: Bench) -> None:
        models = bench.folder / "models"
        models.mkdir()
        (models / "x.l3r").write_bytes(PACKAGE)
        with pytest.raises(UsageError) as caught:
            bench.get(str(models / "x.l3r"), "--sha256", digest(PACKAGE))
        assert caught.value.slug == "download-same"
        assert (models / "x.l3r").read_bytes() == PACKAGE

    def test_network_is_not_needed(self, bench: Bench) -> None:
        source = bench.folder / "x.l3r"
        source.write_bytes(PACKAGE)
        assert bench.get(str(source), "--offline", "--sha256", digest(PACKAGE)).read_bytes() == PACKAGE


class TestOffline:
    @pytest.mark.parametrize("how", ["option", "variable"])
    def test_no_socket_is_opened(self, server: FaultServer, bench: Bench, how: str) -> None:
        serve(server, release(PACKAGE))
        words = ["--offline"] if how == "option" else []
        if how == "variable":
            bench.environ["HF_HUB_OFFLINE"] = "1"
        with pytest.raises(NetworkError) as caught:
            bench.get(server.url("/release/"), *words)
        assert caught.value.slug == "network-offline"
        assert server.seen == []


class TestSpace:
    def test_too_small_a_disk_is_known_before_the_first_byte(self, server: FaultServer, bench: Bench) -> None:
        serve(server, release(PACKAGE))
        bench.system = SystemView(host=SmallDisk(100_000))
        with pytest.raises(ResourceError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "disk-space"
        assert caught.value.exit_code == 5
        assert not server.requests(f"/release/{NAME}")
        assert bench.names() == []

    def test_size_that_only_the_answer_says_counts_too(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE})
        bench.system = SystemView(host=SmallDisk((64 << 20) + len(PACKAGE) - 1))
        with pytest.raises(ResourceError):
            bench.get(server.url("/release/x.l3r"), "--sha256", digest(PACKAGE))
        bench.system = SystemView(host=SmallDisk((64 << 20) + len(PACKAGE)))
        bench.get(server.url("/release/x.l3r"), "--sha256", digest(PACKAGE))
