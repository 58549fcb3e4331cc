"""A MANIFEST.json or MODEL.json that is believed though it is malformed, or written so that it cannot be read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import PackageError
from launcher.integrity.manifest import MAX_FILES, ReleaseFile, parse_manifest, read_manifest
from launcher.integrity.model_info import (
    BaseModel,
    Donor,
    Evaluation,
    KnownAnswer,
    MemoryFigures,
    ModelInfo,
    PackageFile,
    Quantization,
    parse_model_info,
    read_model_info,
)
from launcher.integrity.release_files import portable_path_fault
from launcher.integrity.versions import parse_version
from tests.support.releases import TOY_FILES, manifest_of

SCHEMAS = Path(__file__).resolve().parents[2] / "launcher" / "schemas"
A = "a" * 64


def schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return document


MANIFEST = manifest_of(TOY_FILES, redistribution={"rknn-runtime": "vendor-license"})
INFO = ModelInfo(
    name="toy",
    base=BaseModel(repository="org/base", revision="0" * 40),
    mtp_donor=Donor(repository="org/donor", revision="1" * 40, licence="Apache-2.0"),
    package=PackageFile(path="toy.l3r", size=2, sha256=A),
    quantization=Quantization(recipe="w4a8", recipe_sha256=A, calibration_sha256=None),
    architecture="bailing_hybrid",
    shapes={"layers": 24, "hidden": 2048},
    native_context=131072,
    maximum_context=262144,
    mtp=True,
    tokenizer_sha256=A,
    template_sha256=A,
    licence="MIT",
    languages=("zh", "en"),
    evaluation=Evaluation(reference="BF16", text_sha256=A, positions=4322, metrics={"kl": 0.0261, "top1": 1}),
    memory=MemoryFigures(source="predicted", terms={"weights_mapped": 5_188_395_008}),
    known_answer=KnownAnswer(prompt=(5, 0), continuation=(2**31 - 1,)),
)


def test_manifest_reads_back() -> None:
    assert parse_manifest(MANIFEST.to_json()) == replace(MANIFEST, files=tuple(sorted(MANIFEST.files, key=path_bytes)))


def path_bytes(file: ReleaseFile) -> bytes:
    return file.path.encode()


def test_order_of_files_and_tools_does_not_change_a_byte() -> None:
    turned = replace(MANIFEST, files=MANIFEST.files[::-1], tools={"b": "1", "a": "2"})
    same = replace(MANIFEST, tools={"a": "2", "b": "1"})
    assert turned.to_json() == same.to_json()
    assert turned.to_json().endswith(b"}\n")
    assert b"\r" not in turned.to_json()
    assert "Größe".encode() in turned.to_json()


def test_model_info_reads_back() -> None:
    assert parse_model_info(INFO.to_json()) == replace(INFO, languages=("en", "zh"))
    bare = replace(INFO, base=None, mtp_donor=None, evaluation=None, memory=None, languages=())
    assert parse_model_info(bare.to_json()) == bare


def test_documents_follow_their_schemas() -> None:
    jsonschema.validate(json.loads(MANIFEST.to_json()), schema("manifest.json"))
    jsonschema.validate(json.loads(INFO.to_json()), schema("model.json"))
    bare = replace(INFO, base=None, mtp_donor=None, evaluation=None, memory=None)
    jsonschema.validate(json.loads(bare.to_json()), schema("model.json"))


def changed(change: Callable[[Any], object], data: bytes = b"") -> bytes:
    document = json.loads(data or MANIFEST.to_json())
    change(document)
    return json.dumps(document).encode()


def put(*path: str | int, value: object) -> Callable[[Any], object]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Any], object]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        del document[path[-1]]

    return change


BAD_MANIFESTS = {
    "empty digest": (put("files", 0, "sha256", value=""), "sha256"),
    "missing digest": (drop("files", 0, "sha256"), "sha256 is missing"),
    "null digest": (put("files", 0, "sha256", value=None), "sha256"),
    "upper-case digest": (put("files", 0, "sha256", value="A" * 64), "lower-case"),
    "short digest": (put("files", 0, "sha256", value="a" * 63), "64"),
    "long digest": (put("files", 0, "sha256", value="a" * 128), "64"),
    "digest with a line feed": (put("files", 0, "sha256", value="a" * 64 + "\n"), "64"),
    "digits of another script": (put("files", 0, "sha256", value="٣" * 64), "64"),
    "negative size": (put("files", 0, "size", value=-1), "size"),
    "fraction": (put("files", 0, "size", value=1.0), "whole number"),
    "true as size": (put("files", 0, "size", value=True), "whole number"),
    "text as size": (put("files", 0, "size", value="1"), "whole number"),
    "huge size": (put("files", 0, "size", value=1 << 63), "whole number"),
    "text as flag": (put("files", 0, "public", value="yes"), "true or false"),
    "unknown key": (put("md5", value="x"), "unknown key 'md5'"),
    "unknown key of a file": (put("files", 0, "mode", value=1), "unknown key 'mode'"),
    "no files": (put("files", value=[]), "lists no file"),
    "files as object": (put("files", value={}), "list"),
    "file as text": (put("files", 0, value="x"), "expected an object"),
    "lists itself": (put("files", 0, "path", value="MANIFEST.json"), "lists itself"),
    "commit too short": (put("commit", value="abc"), "commit"),
    "digest of the source too short": (put("source_sha256", value="abc"), "source_sha256"),
    "no schema": (drop("schema"), "schema is missing"),
    "other schema": (put("schema", value="other"), "schema is 'other'"),
    "version as text": (put("version", value="1"), "version"),
    "bad release": (put("release", value="latest"), "1.2.3"),
    "bad launcher": (put("min_launcher_version", value="1.0.0-beta"), "1.2.3"),
    "model with a slash": (put("model", value="a/b"), "model"),
    "model with an escape": (put("model", value="a\x1b[2J"), "model"),
    "licence with markup": (put("files", 0, "licence", value="<b>"), "licence"),
    "no tools": (put("tools", value=None), "expected an object"),
    "tools with numbers": (put("tools", "zig", value=1), "zig"),
    "surrogate": (put("builder", value="\ud800"), "builder"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_malformed_manifest_is_refused(name: str) -> None:
    change, fault = BAD_MANIFESTS[name]
    with pytest.raises(PackageError, match=fault) as caught:
        parse_manifest(changed(change))
    assert caught.value.exit_code == 4
    assert caught.value.message.isprintable()


BAD_PATHS = [
    "", "/x", "../x", "a/../x", "a/./x", "./x", "a//x", "x/", ".", "..", "a\\b", "C:x", "a\0b", "a\nb", "a\x7fb", "-rf",
    "\ud800", "x" * 256, "x/" * 600 + "x", "a\u2028b",
]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS, ids=range(len(BAD_PATHS)))
def test_path_that_is_not_inside_the_release_is_refused(path: str) -> None:
    with pytest.raises(PackageError, match="path is"):
        parse_manifest(changed(put("files", 0, "path", value=path)))


@pytest.mark.parametrize("path", ["a", "a.b", "a b", ".hidden", "...", "..a", "日本語/文件", "a-b", "é", "x" * 255])
def test_usual_paths_pass(path: str) -> None:
    assert portable_path_fault(path) is None


@pytest.mark.parametrize("paths", [("x", "x"), ("x", "X"), ("é", "e\u0301"), ("ß", "SS"), ("x", "x/y"), ("X/y", "x")])
def test_names_of_which_only_one_can_exist_are_refused(paths: tuple[str, str]) -> None:
    def change(document: Any) -> None:
        first = document["files"][0]
        document["files"] = [{**first, "path": path} for path in paths]

    with pytest.raises(PackageError, match="cannot both exist"):
        parse_manifest(changed(change))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{", b"\xff", b'{"schema": NaN}', b"[" * 200_000, b'{"a":' * 100_000,
        b"1" * 100_000, b'{"schema": "mindnano.manifest", "version": 1e999}',
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    for parse in (parse_manifest, parse_model_info):
        with pytest.raises(PackageError):
            parse(data)


def test_key_that_occurs_twice_is_refused() -> None:
    text = MANIFEST.to_json().decode()
    twice = text.replace('"size":', '"size": 1, "size":', 1)
    with pytest.raises(PackageError, match="'size' occurs twice"):
        parse_manifest(twice.encode())


def test_newer_format_is_told_apart_from_a_damaged_one() -> None:
    with pytest.raises(PackageError) as caught:
        parse_manifest(changed(put("version", value=2)))
    assert caught.value.slug == "metadata-version"


def test_newer_launcher_is_asked_for_before_unknown_keys_are_refused() -> None:
    def change(document: Any) -> None:
        document["min_launcher_version"] = "99.0.0"
        document["new_key"] = 1

    with pytest.raises(PackageError, match=r"99\.0\.0 or newer") as caught:
        parse_manifest(changed(change))
    assert caught.value.slug == "launcher-too-old"


def test_writer_refuses_what_the_reader_would() -> None:
    for broken in (
        replace(MANIFEST, release="newest"),
        replace(MANIFEST, files=()),
        replace(MANIFEST, files=MANIFEST.files + MANIFEST.files),
        replace(MANIFEST, files=(replace(MANIFEST.files[0], path="../x"),)),
        replace(MANIFEST, files=(replace(MANIFEST.files[0], path="\ud800"),)),
        replace(MANIFEST, files=(replace(MANIFEST.files[0], sha256=""),)),
    ):
        with pytest.raises((PackageError, UnicodeEncodeError)):
            broken.to_json()
    with pytest.raises(PackageError):
        replace(INFO, licence="").to_json()


def test_manifest_for_a_newer_launcher_can_be_written() -> None:
    assert b'"99.0.0"' in replace(MANIFEST, min_launcher_version="99.0.0").to_json()


def test_ten_thousand_files_are_read_and_more_than_the_limit_are_not() -> None:
    first = MANIFEST.files[0]
    many = replace(MANIFEST, files=tuple(replace(first, path=f"folder/{number:06}") for number in range(10_000)))
    assert len(parse_manifest(many.to_json()).files) == 10_000
    document = json.loads(many.to_json())
    document["files"] = document["files"][:1] * (MAX_FILES + 1)
    with pytest.raises(PackageError, match=f"at most {MAX_FILES}"):
        parse_manifest(json.dumps(document, separators=(",", ":")).encode())


def test_too_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    for name, read in (("MANIFEST.json", read_manifest), ("MODEL.json", read_model_info)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(PackageError) as caught:
            read(tmp_path)
        assert caught.value.slug == "metadata-too-large"


def test_missing_files_are_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    assert read_model_info(tmp_path) is None


BAD_INFO = {
    "no revision": (drop("base", "revision"), "revision"),
    "branch as revision": (put("base", "revision", value="main"), "revision"),
    "donor without revision": (drop("mtp_donor", "revision"), "revision"),
    "donor without licence": (drop("mtp_donor", "licence"), "licence"),
    "donor by a branch": (put("mtp_donor", "revision", value="main"), "revision"),
    "repository as address": (put("base", "repository", value="https://x/y"), "repository"),
    "empty digest of the package": (put("package", "sha256", value=""), "sha256"),
    "package outside": (put("package", "path", value="../x.l3r"), "path"),
    "no template digest": (drop("template_sha256"), "template_sha256"),
    "empty template digest": (put("template_sha256", value=""), "template_sha256"),
    "no context": (put("native_context", value=0), "native_context"),
    "metric as text": (put("evaluation", "metrics", "kl", value="low"), "finite number"),
    "endless metric": (put("evaluation", "metrics", "kl", value=10**400), "finite number"),
    "negative id": (put("known_answer", "prompt", value=[-1]), "token ids"),
    "true as an id": (put("known_answer", "continuation", value=[True]), "token ids"),
    "no ids": (put("known_answer", "prompt", value=[]), "at least one token id"),
    "negative bytes": (put("memory", "terms", "weights_mapped", value=-1), "weights_mapped"),
    "language": (put("languages", value=["English"]), "language"),
    "languages": (put("languages", value="zh"), "list"),
    "unknown key": (put("package", "url", value="x"), "unknown key 'url'"),
    "other schema": (put("schema", value="mindnano.manifest"), "schema"),
}


@pytest.mark.parametrize("name", BAD_INFO)
def test_malformed_model_info_is_refused(name: str) -> None:
    change, fault = BAD_INFO[name]
    with pytest.raises(PackageError, match=fault):
        parse_model_info(changed(change, INFO.to_json()))


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}))


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_any_changed_document_is_read_or_our_error(data: st.DataObject) -> None:
    """One value anywhere becomes something else; the reader agrees with the committed schema where that can tell."""
    parse, source, file = data.draw(
        st.sampled_from(
            [(parse_manifest, MANIFEST.to_json(), "manifest.json"), (parse_model_info, INFO.to_json(), "model.json")]
        )
    )
    document: Any = json.loads(source)
    holder = document
    while True:
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[key], dict | list) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    before = copy.deepcopy(holder[key])
    holder[key] = data.draw(leaves)
    try:
        parse(json.dumps(document).encode())
    except PackageError:
        assert holder[key] != before or type(holder[key]) is not type(before)
    else:
        jsonschema.validate(document, schema(file))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_our_error(data: bytes) -> None:
    with pytest.raises(PackageError):
        parse_manifest(data)


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("1.0.0", "1.0.1"), ("1.9", "1.10"), ("1.0.0rc1", "1.0.0"), ("1.0.0.dev9", "1.0.0a1"), ("1.0.0a2", "1.0.0b1"),
        ("1.0.0b2", "1.0.0rc1"), ("1.0.0rc2", "1.0.0rc10"), ("0.9.9.9", "1.0"),
    ],
)  # fmt: skip
def test_versions_are_ordered_by_number(lower: str, higher: str) -> None:
    left, right = parse_version(lower), parse_version(higher)
    assert left is not None
    assert right is not None
    assert left < right


def test_trailing_zeros_make_no_version_and_words_are_none() -> None:
    assert parse_version("1.2") == parse_version("1.2.0.0")
    for text in ("", "1", "v1.0", "1.0-1", "1.0.0.0.0", "1.0\n", "1..0", "١.٢", "9" * 20 + ".0"):
        assert parse_version(text) is None
