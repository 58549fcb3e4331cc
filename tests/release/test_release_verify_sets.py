"""A release that passes without its lists or signatures, or with folders and links that are none of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from launcher.errors import PackageError
from release import cli
from release.folder.signing import read_secret_key, sign
from tests.support.demo import ROOT, require_demo
from tests.support.minisign_keys import LOCKED_PUBLIC, PLAIN, PLAIN_PUBLIC
from tests.support.release_folders import faults, look, make_release, stand_in_program

SCHEMA = json.loads((ROOT / "release" / "folder" / "schemas" / "verify.json").read_text(encoding="utf-8"))
FULL, PUBLIC = "SHA256SUMS", "SHA256SUMS.PUBLIC"
OF_FULL, OF_PUBLIC = f"{FULL}.minisig", f"{PUBLIC}.minisig"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`signed`, `unsigned`, and the two public keys of whom it is by and whom it is not; not to be changed."""
    folder = tmp_path_factory.mktemp("releases")
    (folder / "key").write_text(PLAIN)
    (folder / "right.pub").write_text(f"untrusted comment: x\n{PLAIN_PUBLIC}\n")
    (folder / "other.pub").write_text(f"untrusted comment: x\n{LOCKED_PUBLIC}\n")
    program = stand_in_program(folder / "program")
    make_release(folder / "unsigned", program, require_demo())
    make_release(folder / "signed", program, require_demo(), key=read_secret_key(folder / "key", str))
    return folder


@pytest.fixture
def unsigned(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "unsigned", tmp_path / "release"))


@pytest.fixture
def signed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "signed", tmp_path / "release"))


def make_flat(folder: Path) -> None:
    """What somebody has who downloaded it from Hugging Face."""
    shutil.rmtree(folder / "notices")
    for name in (FULL, OF_FULL):
        (folder / name).unlink(missing_ok=True)


def remove(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        place = folder / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ([FULL], [FULL]),
        ([PUBLIC], [PUBLIC]),
        ([FULL, PUBLIC], [FULL, PUBLIC]),
        ([FULL, PUBLIC, "notices"], [PUBLIC]),  # the flat set is left, without its list
    ],
)
def test_a_list_that_is_missing_is_missed(unsigned: Path, gone: list[str], missing: list[str]) -> None:
    remove(unsigned, gone)
    result = look(unsigned)
    assert result.exit_code == 4
    assert faults(result)["sums"] == tuple(f"{name} is missing" for name in missing)


def test_files_outside_the_flat_set_are_missed_without_their_list_too(unsigned: Path) -> None:
    remove(unsigned, [FULL, "notices/openssl.txt"])
    assert faults(look(unsigned))["files"] == ("missing: notices/openssl.txt",)
    remove(unsigned, [PUBLIC])
    assert faults(look(unsigned))["files"] == ("missing: notices/openssl.txt",)


@pytest.mark.parametrize("left", [FULL, "notices/openssl.txt", "notices/"])
def test_whatever_only_a_whole_release_has_makes_it_one(unsigned: Path, made: Path, left: str) -> None:
    make_flat(unsigned)
    assert not look(unsigned).complete
    (unsigned / left).parent.mkdir(exist_ok=True)
    if left.endswith("/"):
        (unsigned / left).mkdir()
    else:
        shutil.copy(made / "unsigned" / left, unsigned / left)
    result = look(unsigned)
    assert result.complete
    assert result.exit_code == 4


def test_an_empty_folder_is_extra(unsigned: Path) -> None:
    (unsigned / "more" / "still").mkdir(parents=True)
    (unsigned / "notices" / "more").mkdir()
    (unsigned / ".cache" / "huggingface").mkdir(parents=True)  # the client of the hub makes it
    assert faults(look(unsigned)) == {"files": ("extra: more/", "extra: notices/more/")}


def command(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and state of the signature by `mindnano verify --json`."""
    code = cli.main(["verify", str(folder), "--json", *words])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == code
    if document["error"] is not None:
        return code, document["error"]["message"]
    check = next(check for check in document["checks"] if check["name"] == "signature")
    return code, f"{check['state']}: {' '.join(check['faults']) or check['fact']}"


@pytest.mark.parametrize("flat", [False, True])
def test_with_a_key_an_unsigned_release_fails(
    unsigned: Path, made: Path, capsys: pytest.CaptureFixture[str], flat: bool
) -> None:
    if flat:
        make_flat(unsigned)
    assert command(capsys, unsigned) == (0, "warn: none: nobody vouches for this release")
    code, said = command(capsys, unsigned, "--public-key", str(made / "right.pub"))
    assert (code, said) == (
        8,
        f"fail: {PUBLIC if flat else FULL} has no signature, expected one by the key that was given",
    )


def test_with_a_key_a_signed_release_passes(signed: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, other = str(made / "right.pub"), str(made / "other.pub")
    code, said = command(capsys, signed, "--public-key", right)
    assert (code, said.count("by key C2BDEB7D7E1687E8: mindnano-demo 1.2.3")) == (0, 2)
    assert said.startswith("ok: ")
    assert command(capsys, signed, "--public-key", other)[0] == 8
    code, said = command(capsys, signed)
    assert code == 0
    assert said.startswith("warn: SHA256SUMS signed, and no key is known")
    make_flat(signed)
    code, said = command(capsys, signed, "--public-key", right)
    assert (code, said) == (0, f"ok: {PUBLIC} by key C2BDEB7D7E1687E8: mindnano-demo 1.2.3")


def test_signatures_that_were_taken_away_are_missed(
    signed: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(signed, [OF_FULL, OF_PUBLIC])
    assert command(capsys, signed, "--public-key", str(made / "right.pub"))[0] == 8
    assert command(capsys, signed)[0] == 0


@pytest.mark.parametrize(("gone", "left"), [(FULL, PUBLIC), (PUBLIC, FULL)])
@pytest.mark.parametrize("words", [[], ["--public-key", "right.pub"]])
def test_one_signature_of_two_is_not_called_none(
    signed: Path, made: Path, capsys: pytest.CaptureFixture[str], gone: str, left: str, words: list[str]
) -> None:
    remove(signed, [f"{gone}.minisig"])
    code, said = command(capsys, signed, *[str(made / word) if word.endswith(".pub") else word for word in words])
    assert (code, said) == (8, f"fail: {gone}: the signature is missing, though there is one for {left}")


def test_a_signature_about_another_version_is_not_this_ones(made: Path, tmp_path: Path) -> None:
    secret = read_secret_key(made / "key", str)
    folder = Path(shutil.copytree(made / "signed", tmp_path / "release"))
    for name in (FULL, PUBLIC):
        (folder / f"{name}.minisig").write_bytes(sign((folder / name).read_bytes(), secret, "mindnano-demo 9.9.9"))
    found = look(folder, keys=[secret.public()])
    assert found.exit_code == 8
    assert "is about mindnano-demo 9.9.9, the manifest about mindnano-demo 1.2.3" in faults(found)["signature"][0]
    for name in (FULL, PUBLIC):  # as minisign writes where it is told nothing
        comment = f"timestamp:1790000000\tfile:{name}\thashed"
        (folder / f"{name}.minisig").write_bytes(sign((folder / name).read_bytes(), secret, comment))
    assert faults(look(folder, keys=[secret.public()], signed=True)) == {}


def test_a_download_into_the_cache_is_told_how_to_be_fetched(
    unsigned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_flat(unsigned)
    model = tmp_path / "hub" / "models--org--tiny"
    snapshot = model / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for number, path in enumerate(sorted(unsigned.iterdir())):
        path.rename(model / "blobs" / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert cli.main(["verify", str(snapshot)]) == 4
    assert "hf download org/tiny --local-dir DIR" in capsys.readouterr().err
    snapshot.rename(tmp_path / "elsewhere")  # without a name in the path, and with links to nothing
    with pytest.raises(PackageError) as caught:
        look(tmp_path / "elsewhere")
    assert caught.value.slug == "release-links"
    assert "hf download ORG/NAME --local-dir DIR" in caught.value.hint
