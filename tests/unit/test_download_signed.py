"""A signature that is not looked at, or an older or unsigned release that takes the place of a signed one."""

from __future__ import annotations

import pytest

from launcher.errors import TrustError
from launcher.integrity.claims import SignatureState
from launcher.integrity.verify import require_verified
from launcher.messages import Catalogue, Language
from tests.support.downloads import (
    NAME,
    PACKAGE,
    Bench,
    digest,
    random_bytes,
    release,
    serve,
)
from tests.support.fault_server import FaultServer
from tests.support.releases import Signer, publisher


class TestSigned:
    """The trust in a release: a key in the program, the signature, the list, the files."""

    SIGNER = Signer.from_seed(1)

    def serve(self, server: FaultServer, version: str = "1.0.0", *, signer: Signer | None = None) -> dict[str, bytes]:
        files = release(PACKAGE, version=version)
        files["SHA256SUMS.minisig"] = (signer or self.SIGNER).sign(files["SHA256SUMS"])
        serve(server, files)
        return files

    @pytest.fixture(autouse=True)
    def publisher(self, bench: Bench) -> None:
        bench.publisher = publisher(self.SIGNER.public())

    def test_holds_and_is_said(self, server: FaultServer, bench: Bench) -> None:
        files = self.serve(server)
        path = bench.get(server.url("/release/"))
        assert "as the publisher signed it" in bench.err
        assert (path.parent / "SHA256SUMS.minisig").read_bytes() == files["SHA256SUMS.minisig"]

    def test_of_another_list_is_refused(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server)
        server.add("/release/SHA256SUMS.minisig", self.SIGNER.sign(b"another list"))
        with pytest.raises(TrustError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.exit_code == 8
        assert caught.value.message.startswith(f"{server.url('/release/')}: SHA256SUMS.minisig: ")
        assert not server.requests(f"/release/{NAME}")
        assert bench.names() == []

    def test_by_another_key_is_refused(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server, signer=Signer.from_seed(2))
        with pytest.raises(TrustError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "signature-key-unknown"

    def test_without_a_key_to_check_it_is_only_a_list(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server)
        bench.publisher = publisher()
        bench.get(server.url("/release/"))
        assert "has no key to check it with" in bench.err
        assert "not proven by a signature" in bench.err

    def test_given_digest_does_not_hide_a_signature(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server)
        bench.get(server.url("/release/"), "--sha256", digest(PACKAGE))
        assert "as the publisher signed it" in bench.err

    def test_older_release_is_not_passed_off_as_new(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server, "2.0.0")
        path = bench.get(server.url("/release/"))
        before = (path.parent / "MANIFEST.json").read_bytes()
        self.serve(server, "1.0.0")
        with pytest.raises(TrustError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "release-rollback"
        assert (path.parent / "MANIFEST.json").read_bytes() == before

    def test_public_list_suffices(self, server: FaultServer, bench: Bench) -> None:
        files = self.serve(server)
        for name in ("SHA256SUMS", "SHA256SUMS.minisig"):
            del server.files[f"/release/{name}"]
            server.add(f"/release/{name.replace('SUMS', 'SUMS.PUBLIC')}", files[name])
        path = bench.get(server.url("/release/"))
        assert "as the publisher signed it" in bench.err
        assert (path.parent / "SHA256SUMS.PUBLIC").is_file()

    def test_unsigned_release_does_not_replace_a_signed_one(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server)
        path = bench.get(server.url("/release/"))
        before = {name.name: name.read_bytes() for name in path.parent.iterdir()}
        del server.files["/release/SHA256SUMS.minisig"]
        with pytest.raises(TrustError) as caught:
            bench.get(server.url("/release/"))
        assert caught.value.slug == "release-unsigned"
        assert {name.name: name.read_bytes() for name in path.parent.iterdir()} == before
        bench.get(server.url("/release/"), "--sha256", digest(PACKAGE))
        assert not (path.parent / "SHA256SUMS.minisig").exists()

    @pytest.mark.parametrize("other", ["SHA256SUMS", "SHA256SUMS.PUBLIC"])
    def test_lists_of_an_earlier_release_do_not_condemn_the_next(
        self, server: FaultServer, bench: Bench, other: str
    ) -> None:
        bench.publisher = publisher()
        self.serve(server)
        bench.get(server.url("/release/"))
        server.files.clear()
        package = random_bytes(200_000, seed=2)
        serve(server, {NAME: package, other: f"{digest(package)}  {NAME}\n".encode()})
        path = bench.get(server.url("/release/"))
        found = require_verified(path, bench.environ, texts=Catalogue(Language.ENGLISH), publisher=bench.publisher)
        assert found is not None
        assert found.sources == (other,)
        assert found.signature is SignatureState.NONE

    def test_downloaded_release_passes_the_check_of_every_start(self, server: FaultServer, bench: Bench) -> None:
        self.serve(server)
        path = bench.get(server.url("/release/"))
        found = require_verified(path, bench.environ, texts=Catalogue(Language.ENGLISH), publisher=bench.publisher)
        assert found is not None
        assert found.sha256 == digest(PACKAGE)
        assert found.signature is SignatureState.VALID
