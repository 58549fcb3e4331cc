"""A first start that downloads unasked, asks where nobody answers, or takes the wrong model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.download.first_start import first_start
from launcher.download.model_store import find_model, model_folder
from launcher.errors import NetworkError, PackageError, UsageError
from launcher.integrity.publisher import Publisher
from launcher.messages import Catalogue, Language
from launcher.options.parse import Options, parse
from launcher.system import SystemView
from tests.support.downloads import NAME, Bench, SmallDisk, random_bytes, release
from tests.support.fault_server import FaultServer, serve_repository

DATA = random_bytes(200_000)
REPOSITORY = "some-org/some-model"
OWNER = Publisher(repository=REPOSITORY, keys=())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hub() -> Iterator[FaultServer]:
    with FaultServer() as running, FaultServer() as cdn:
        serve_repository(running, cdn, REPOSITORY, release(DATA))
        yield running


@pytest.fixture
def bench(tmp_path: Path, hub: FaultServer) -> Bench:
    return Bench(folder=tmp_path, environ={"HF_ENDPOINT": hub.url()}, publisher=OWNER)


@pytest.fixture
def screen() -> Terminal:
    return Terminal()


def start(bench: Bench, screen: io.StringIO, answer: str, *words: str, language: Language = Language.ENGLISH) -> Path:
    """A start with this answer at hand; the models are where they usually are."""
    return first_start(
        parse(words, bench.environ, files=()),
        bench.environ,
        Catalogue(language),
        bench.system,
        surroundings=bench.surroundings,
        publisher=bench.publisher,
        keyboard=type(screen)(answer),
        screen=screen,
    )


def test_off_a_terminal_the_error_names_the_ways(bench: Bench, hub: FaultServer) -> None:
    with pytest.raises(PackageError) as caught:
        start(bench, io.StringIO(), "y")
    assert caught.value.slug == "model-missing"
    assert caught.value.exit_code == 4
    for way in ("--download", "--model", "--demo"):
        assert way in caught.value.hint
    assert hub.seen == []


@pytest.mark.parametrize("answer", ["y", "YES\n", "是"])
def test_yes_downloads(bench: Bench, screen: Terminal, answer: str) -> None:
    path = start(bench, screen, answer)
    assert path.read_bytes() == DATA
    assert path.parent.parent == bench.folder / "home" / ".local" / "share" / "mindnano" / "models"
    assert find_model(parse([], bench.environ, files=()), bench.environ) == path


@pytest.mark.parametrize("answer", ["", "\n", "n", "no", "yesterday"])
def test_anything_else_downloads_nothing(bench: Bench, hub: FaultServer, screen: Terminal, answer: str) -> None:
    with pytest.raises(PackageError) as caught:
        start(bench, screen, answer)
    assert caught.value.slug == "model-missing"
    assert not any(request.path.endswith(NAME) for request in hub.seen)
    assert not (bench.folder / "home").exists()


@pytest.mark.parametrize("language", list(Language))
def test_source_size_and_space_are_shown_before_the_question(
    bench: Bench, screen: Terminal, language: Language
) -> None:
    bench.system = SystemView(host=SmallDisk(5 << 30))
    with pytest.raises(PackageError):
        start(bench, screen, "n", language=language)
    text = screen.getvalue()
    for fact in (f"/{REPOSITORY}@main", NAME, "195 KiB", "5.0 GiB", "HF_ENDPOINT", "--demo"):
        assert fact in text
    assert text.endswith("[y/N] ")


@pytest.mark.parametrize("way", ["--offline", "variable", "nobody"])
def test_nothing_is_offered_that_cannot_be_had(bench: Bench, hub: FaultServer, screen: Terminal, way: str) -> None:
    words = ["--offline"] if way == "--offline" else []
    if way == "variable":
        bench.environ["HF_HUB_OFFLINE"] = "1"
    if way == "nobody":
        bench.publisher = Publisher(repository=None, keys=())
    with pytest.raises(PackageError) as caught:
        start(bench, screen, "y", *words)
    assert caught.value.slug == "model-missing"
    assert hub.seen == []
    assert screen.getvalue() == ""


def test_network_that_fails_is_named(bench: Bench, hub: FaultServer, screen: Terminal) -> None:
    hub.files.clear()
    with pytest.raises(NetworkError):
        start(bench, screen, "y")


class TestFindModel:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        return tmp_path / "data" / "mindnano" / "models"

    def find(self, tmp_path: Path, *words: str) -> Path | None:
        environ = {"XDG_DATA_HOME": str(tmp_path / "data")}
        program = tmp_path / "bin" / "mindnano-infer"
        program.parent.mkdir(exist_ok=True)
        return find_model(self.options(*words), environ, program=program)

    def options(self, *words: str) -> Options:
        return parse(words, {}, files=())

    def put(self, *paths: Path) -> None:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")

    def test_nothing_is_a_first_start(self, tmp_path: Path) -> None:
        assert self.find(tmp_path) is None

    def test_named_one_is_taken(self, tmp_path: Path) -> None:
        assert self.find(tmp_path, "--model", "x.l3r") == Path("x.l3r")

    def test_one_beside_the_program_comes_first(self, tmp_path: Path, home: Path) -> None:
        beside = tmp_path / "bin" / "any.l3r"
        self.put(beside, home / NAME)
        assert self.find(tmp_path) == beside

    def test_released_name_is_meant_among_several(self, tmp_path: Path) -> None:
        beside = tmp_path / "bin"
        self.put(beside / "a.l3r", beside / NAME, beside / "z.l3r")
        assert self.find(tmp_path) == beside / NAME

    def test_folders_of_releases_are_looked_into(self, tmp_path: Path, home: Path) -> None:
        self.put(home / "org--name" / "x.l3r")
        assert self.find(tmp_path) == home / "org--name" / "x.l3r"

    def test_unfinished_ones_are_none(self, tmp_path: Path, home: Path) -> None:
        self.put(home / f"{NAME}.part", home / f"{NAME}.bad", home / f"{NAME}.part.json")
        (home / "folder.l3r").mkdir()
        assert self.find(tmp_path) is None

    def test_several_are_listed(self, tmp_path: Path, home: Path) -> None:
        self.put(home / "one" / NAME, home / "two" / NAME, home / "other.l3r")
        with pytest.raises(UsageError) as caught:
            self.find(tmp_path)
        assert caught.value.slug == "model-ambiguous"
        assert str(home / "one" / NAME) in caught.value.message
        assert str(home / "two" / NAME) in caught.value.message

    def test_folder_is_where_it_is_said_to_be(self, tmp_path: Path) -> None:
        assert model_folder(self.options("--model-dir", "/x"), {}) == Path("/x")
        assert model_folder(self.options(), {"XDG_DATA_HOME": "/data"}) == Path("/data/mindnano/models")
        usual = Path("/home/u/.local/share/mindnano/models")
        assert model_folder(self.options(), {"HOME": "/home/u"}) == usual
        assert model_folder(self.options(), {"HOME": "/home/u", "XDG_DATA_HOME": "relative"}) == usual
