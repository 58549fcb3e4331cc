"""A release that comes incomplete, in the wrong place, from two commits, unproven, or with words on stdout."""

from __future__ import annotations

import pytest

from launcher.errors import NetworkError, PackageError, TrustError, UsageError
from launcher.integrity.publisher import Publisher
from tests.support.demo import require_demo
from tests.support.downloads import (
    COMMIT,
    NAME,
    PACKAGE,
    REPOSITORY,
    Bench,
    digest,
    release,
    serve,
)
from tests.support.fault_server import Fault, FaultServer, serve_repository


class TestRepository:
    @pytest.fixture
    def files(self, server: FaultServer, cdn: FaultServer, bench: Bench) -> dict[str, bytes]:
        files = release(PACKAGE)
        serve_repository(server, cdn, REPOSITORY, files)
        bench.environ["HF_ENDPOINT"] = server.url()
        return files

    def test_comes_whole_without_the_program(self, files: dict[str, bytes], bench: Bench) -> None:
        path = bench.get(REPOSITORY)
        assert path.read_bytes() == PACKAGE
        folder = "some-org--some-model"
        assert bench.names() == [f"{folder}/{name}" for name in ("MANIFEST.json", "NOTICE", "SHA256SUMS", NAME)]
        for name in ("MANIFEST.json", "NOTICE", "SHA256SUMS"):
            assert (path.parent / name).read_bytes() == files[name]

    def test_stdout_has_the_path_and_nothing_else(self, files: dict[str, bytes], bench: Bench) -> None:
        path = bench.get(REPOSITORY)
        assert bench.out == f"{path}\n"
        assert "Downloading" in bench.err
        assert "\r" not in bench.err
        assert "\x1b" not in bench.err

    def test_every_file_is_of_the_commit_that_the_revision_named(
        self, files: dict[str, bytes], server: FaultServer, bench: Bench
    ) -> None:
        bench.get(REPOSITORY)
        resolved = [request.path for request in server.seen if "/resolve/" in request.path]
        assert len(resolved) == 4
        assert all(path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") for path in resolved)

    def test_revision_is_asked_for_by_name(self, files: dict[str, bytes], server: FaultServer, bench: Bench) -> None:
        server.files[f"/api/models/{REPOSITORY}/revision/v1.0"] = server.files[
            f"/api/models/{REPOSITORY}/revision/main"
        ]
        bench.get(f"{REPOSITORY}@v1.0")
        assert server.requests(f"/api/models/{REPOSITORY}/revision/v1.0")
        assert not server.requests(f"/api/models/{REPOSITORY}/revision/main")

    def test_publishers_repository_is_the_usual_source(self, files: dict[str, bytes], bench: Bench) -> None:
        bench.publisher = Publisher(repository=REPOSITORY, keys=())
        assert bench.get(None).read_bytes() == PACKAGE

    def test_without_a_publisher_the_error_says_how_to_name_a_source(self, bench: Bench) -> None:
        with pytest.raises(UsageError) as caught:
            bench.get(None)
        assert caught.value.slug == "source-missing"
        assert "--download ORG/NAME" in caught.value.hint

    def test_token_stays_at_the_endpoint(
        self, files: dict[str, bytes], server: FaultServer, cdn: FaultServer, bench: Bench
    ) -> None:
        bench.environ["HF_TOKEN"] = "hf_secret"
        bench.get(REPOSITORY)
        assert {request.headers.get("authorization") for request in server.seen} == {"Bearer hf_secret"}
        assert cdn.seen
        assert not any("authorization" in request.headers for request in cdn.seen)
        assert "hf_secret" not in bench.err + bench.out

    def test_token_file_is_read(self, files: dict[str, bytes], server: FaultServer, bench: Bench) -> None:
        home = bench.folder / "hf"
        home.mkdir()
        (home / "token").write_text("hf_from_file\n")
        bench.environ["HF_HOME"] = str(home)
        bench.get(REPOSITORY)
        assert server.seen[0].headers["authorization"] == "Bearer hf_from_file"

    def test_query_of_a_signed_address_is_not_shown(
        self, files: dict[str, bytes], cdn: FaultServer, bench: Bench
    ) -> None:
        cdn.fail(f"/lfs/{digest(PACKAGE)}", *[Fault(status=403)] * 9)
        with pytest.raises(NetworkError) as caught:
            bench.get(REPOSITORY)
        assert "/lfs/" in caught.value.message
        assert "secret" not in caught.value.message + bench.err

    @pytest.mark.parametrize(
        ("status", "code", "slug", "needle"),
        [
            (401, "RepoNotFound", "http-credentials", "HF_TOKEN"),
            (401, "GatedRepo", "http-licence", f"/{REPOSITORY}"),
            (403, "GatedRepo", "http-licence", "HF_TOKEN"),
            (403, "", "http-licence", f"/{REPOSITORY}"),
        ],
    )
    def test_closed_repository_names_the_page_of_its_licence(
        self, server: FaultServer, bench: Bench, files: dict[str, bytes], status: int, code: str, slug: str, needle: str
    ) -> None:
        server.fail(f"/api/models/{REPOSITORY}/revision/main", Fault(status=status, headers={"X-Error-Code": code}))
        with pytest.raises(NetworkError) as caught:
            bench.get(REPOSITORY)
        assert caught.value.slug == slug
        assert needle in caught.value.hint
        assert bench.waits == []

    def test_missing_repository_is_named(self, server: FaultServer, bench: Bench, files: dict[str, bytes]) -> None:
        with pytest.raises(NetworkError, match=r"some-org/other@main does not exist") as caught:
            bench.get("some-org/other")
        assert caught.value.slug == "http-missing"

    def test_answer_that_is_no_hubs_is_not_believed(
        self, server: FaultServer, bench: Bench, files: dict[str, bytes]
    ) -> None:
        server.add(f"/api/models/{REPOSITORY}/revision/main", b"<html>login</html>", content_type="text/html")
        with pytest.raises(NetworkError) as caught:
            bench.get(REPOSITORY)
        assert caught.value.slug == "hub-answer"

    def test_without_lists_the_hubs_digest_counts_and_a_warning_is_given(
        self, server: FaultServer, cdn: FaultServer, bench: Bench
    ) -> None:
        data = require_demo().read_bytes()
        serve_repository(server, cdn, REPOSITORY, {"demo.l3r": data, "README.md": b"x"})
        bench.environ["HF_ENDPOINT"] = server.url()
        assert bench.get(REPOSITORY).read_bytes() == data
        assert "nobody vouches" in bench.err

    def test_wrong_bytes_of_the_right_size_are_kept_as_bad(
        self, files: dict[str, bytes], cdn: FaultServer, bench: Bench
    ) -> None:
        wrong = PACKAGE[:-1] + bytes([PACKAGE[-1] ^ 1])
        cdn.add(f"/lfs/{digest(PACKAGE)}", wrong)
        with pytest.raises(PackageError) as caught:
            bench.get(REPOSITORY)
        assert caught.value.slug == "download-damaged"
        assert caught.value.exit_code == 4
        assert digest(wrong) in caught.value.message
        assert digest(PACKAGE) in caught.value.message
        assert bench.names() == [f"some-org--some-model/{NAME}.bad"]
        assert (bench.folder / "models" / "some-org--some-model" / f"{NAME}.bad").read_bytes() == wrong


class TestFolderUrl:
    def test_comes_whole(self, server: FaultServer, bench: Bench) -> None:
        serve(server, release(PACKAGE))
        path = bench.get(server.url("/release/"))
        assert path == bench.folder / "models" / "release" / NAME
        assert path.read_bytes() == PACKAGE
        assert "not proven by a signature" in bench.err

    def test_sums_alone_suffice(self, server: FaultServer, bench: Bench) -> None:
        files = release(PACKAGE)
        del files["MANIFEST.json"]
        files["SHA256SUMS"] = b"".join(
            f"{digest(files[n])}  {n}\n".encode() for n in sorted(files) if n != "SHA256SUMS"
        )
        serve(server, files)
        assert bench.get(server.url("/release/")).read_bytes() == PACKAGE

    def test_listed_manifest_that_is_not_there_is_missed(self, server: FaultServer, bench: Bench) -> None:
        files = release(PACKAGE)
        del files["MANIFEST.json"]
        serve(server, files)
        with pytest.raises(PackageError, match=r"lists MANIFEST\.json and does not have it"):
            bench.get(server.url("/release/"))

    def test_manifest_that_the_sums_do_not_cover_is_refused(self, server: FaultServer, bench: Bench) -> None:
        files = release(PACKAGE)
        serve(server, {**files, "MANIFEST.json": files["MANIFEST.json"].replace(b"test 1", b"test 2")})
        with pytest.raises(PackageError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "release-contradiction"
        assert bench.names() == []

    def test_damaged_notice_stops_before_the_package(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {**release(PACKAGE), "NOTICE": b"other\n"})
        with pytest.raises(PackageError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "release-contradiction"
        assert not server.requests(f"/release/{NAME}")

    def test_empty_digest_is_no_digest(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {NAME: PACKAGE, "SHA256SUMS": f"  {NAME}\n".encode()})
        with pytest.raises(PackageError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "sums-invalid"

    def test_folder_without_lists_is_refused(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {NAME: PACKAGE})
        with pytest.raises(PackageError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "release-unlisted"

    def test_list_without_end_is_not_read(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"SHA256SUMS": b"x" * (9 << 20)})
        with pytest.raises(NetworkError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "http-too-large"

    def test_several_packages_are_listed(self, server: FaultServer, bench: Bench) -> None:
        serve(server, release(PACKAGE, name="one.l3r", extra={"two.l3r": b"x"}))
        with pytest.raises(PackageError, match=r"one\.l3r, two\.l3r"):
            bench.get(server.url("/release/"))

    def test_list_is_asked_for_again_after_a_server_error(self, server: FaultServer, bench: Bench) -> None:
        serve(server, release(PACKAGE))
        server.fail("/release/SHA256SUMS", Fault(status=503), Fault(cut_after=10), Fault(end_after=10))
        assert bench.get(server.url("/release/")).read_bytes() == PACKAGE
        assert bench.waits == [1.0, 2.0, 4.0]


class TestSingleFile:
    def test_sums_beside_it_count(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE, "SHA256SUMS": f"{digest(PACKAGE)}  x.l3r\n".encode()})
        path = bench.get(server.url("/release/x.l3r"))
        assert path == bench.folder / "models" / "x.l3r"
        assert "as the list at the source says" in bench.err
        server.add("/release/x.l3r", PACKAGE[::-1])
        path.unlink()
        with pytest.raises(PackageError, match=digest(PACKAGE)):
            bench.get(server.url("/release/x.l3r"))

    def test_given_digest_counts(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE})
        bench.get(server.url("/release/x.l3r?key=1"), "--sha256", digest(PACKAGE))
        assert "as --sha256 expects" in bench.err
        with pytest.raises(PackageError, match=r"expected " + "0" * 64):
            bench.get(server.url("/release/x.l3r"), "--sha256", "0" * 64)

    def test_given_digest_that_the_list_contradicts_stops_at_once(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE, "SHA256SUMS": f"{digest(PACKAGE)}  x.l3r\n".encode()})
        with pytest.raises(TrustError) as caught:
            bench.get(server.url("/release/x.l3r"), "--sha256", "0" * 64)
        assert caught.value.exit_code == 8
        assert not server.requests("/release/x.l3r")

    def test_without_any_digest_the_package_proves_itself(self, server: FaultServer, bench: Bench) -> None:
        data = require_demo().read_bytes()
        serve(server, {"x.l3r": data})
        assert bench.get(server.url("/release/x.l3r")).read_bytes() == data
        assert "nobody vouches" in bench.err

    def test_without_any_digest_damage_is_still_found(self, server: FaultServer, bench: Bench) -> None:
        data = bytearray(require_demo().read_bytes())
        data[len(data) // 2] ^= 1
        serve(server, {"x.l3r": bytes(data)})
        with pytest.raises(PackageError) as caught:
            bench.get(server.url("/release/x.l3r"))
        assert caught.value.slug == "download-damaged"
        assert bench.names() == ["x.l3r.bad"]

    def test_page_for_every_path_vouches_for_nothing(self, server: FaultServer, bench: Bench) -> None:
        data = require_demo().read_bytes()
        serve(server, {"x.l3r": data})
        server.add("/release/SHA256SUMS", b"<html>hello</html>", content_type="text/html")
        bench.get(server.url("/release/x.l3r"))
        assert "nobody vouches" in bench.err

    def test_second_run_finds_it_here(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE})
        first = bench.get(server.url("/release/x.l3r"), "--sha256", digest(PACKAGE))
        again = bench.get(server.url("/release/x.l3r"), "--sha256", digest(PACKAGE).upper())
        assert first == again
        assert len(server.requests("/release/x.l3r")) == 1
        assert bench.names() == ["x.l3r"]

    def test_file_that_is_here_is_not_replaced_blindly(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE})
        models = bench.folder / "models"
        models.mkdir()
        (models / "x.l3r").write_bytes(b"mine")
        with pytest.raises(UsageError) as caught:
            bench.get(server.url("/release/x.l3r"))
        assert caught.value.slug == "download-exists"
        assert (models / "x.l3r").read_bytes() == b"mine"
        assert bench.names() == ["x.l3r"]

    def test_older_version_gives_way_only_to_a_proven_one(self, server: FaultServer, bench: Bench) -> None:
        serve(server, {"x.l3r": PACKAGE})
        models = bench.folder / "models"
        models.mkdir()
        (models / "x.l3r").write_bytes(b"older")
        with pytest.raises(PackageError):
            bench.get(server.url("/release/x.l3r"), "--sha256", "0" * 64)
        assert (models / "x.l3r").read_bytes() == b"older"
        bench.get(server.url("/release/x.l3r"), "--sha256", digest(PACKAGE))
        assert (models / "x.l3r").read_bytes() == PACKAGE
