"""Handles used after they are closed, buffers that are too small, errors that lose their meaning on the way."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engine import Engine, Package, Session
from launcher.engine_library import status_error
from launcher.engine_sampling import Sampler, Utf8Stream
from launcher.engine_types import EngineOptions, Logits, Sampling, Section, SessionOptions
from launcher.errors import Cancelled, ContextFull, InternalError, PackageError, UsageError
from tests.support.demo import require_demo


@pytest.fixture
def package() -> Iterator[Package]:
    with Package(require_demo()) as opened:
        yield opened


@pytest.fixture
def session(package: Package) -> Iterator[Session]:
    with Engine(package) as engine, Session(engine, SessionOptions(context=256)) as made:
        yield made


def test_closing_a_package_closes_what_was_made_from_it(package: Package) -> None:
    engine = Engine(package)
    session = Session(engine, SessionOptions(context=16))
    sampler = Sampler(package, Sampling())
    package.close()
    package.close()
    for use in (lambda: engine.threads, lambda: session.position, lambda: sampler.sample_from(array("f", [0.0]))):
        with pytest.raises(InternalError):
            use()
    session.cancel()  # harmless: a signal may come at any time


def test_text_survives_the_round_trip(package: Package) -> None:
    text = "你好, <|role_end|> 🙂 17+25=?\n"
    for special in (True, False):
        ids = package.tokenize(text, special=special)
        assert b"".join(package.token_bytes(token) for token in ids).decode() == text
    assert package.token_find(b"<|role_end|>") in package.config.stop_ids
    assert package.token_find(b"no such token at all") is None
    assert package.token_is_special(package.config.stop_ids[0])
    assert package.tokenize("") == []


@pytest.mark.parametrize("special", [True, False])
def test_first_tokens_are_those_of_all(package: Package, special: bool) -> None:
    """With their number, which is what a prompt that is too long is refused with."""
    text = "你好, <|role_end|> 🙂 17+25=?\n" * 9
    whole = package.tokenize(text, special=special)
    for most in (None, 0, 1, 7, len(whole) - 1, len(whole), len(whole) + 1, 1 << 20):
        ids, count = package.first_tokens(text, most, special=special)
        assert (ids.tolist(), count) == (whole[:most], len(whole))
    assert package.first_tokens("", 0) == (array("i"), 0)
    with pytest.raises(UsageError, match="Unicode"):
        package.first_tokens("\ud800", 0)


def test_code_points_are_never_cut(package: Package) -> None:
    stream = Utf8Stream(package.library)
    data = "a你🙂".encode()
    pieces = [stream.push(data[place : place + 1]) for place in range(len(data))]
    assert "".join(pieces) == "a你🙂"
    assert stream.push(b"\xe4\xbd") == ""
    assert stream.finish() == "\ufffd"


def test_plan_is_what_the_session_holds(package: Package, session: Session) -> None:
    plan = package.plan(EngineOptions(), session.options)
    assert session.allocated == plan.allocated_bytes
    trunk = [tensor for tensor in package.tensors() if tensor.group == 0]
    assert plan.mapped_bytes == max(tensor.offset + tensor.length for tensor in trunk)
    assert sum(term.bytes for term in plan.terms) == plan.allocated_bytes + plan.mapped_bytes


def test_logits_arrive_in_the_callers_buffer(package: Package, session: Session) -> None:
    ids = package.tokenize("hello there")
    size = package.config.vocab_size
    out = array("f", bytes(4 * size * len(ids)))
    session.eval(ids, mode=Logits.ALL, logits=out)
    assert session.tokens() == ids
    assert session.logits() == out[-size:]
    best = max(range(package.config.token_count), key=lambda token: out[-size + token])
    assert Sampler(package, Sampling()).sample(session) == best


def test_small_and_readonly_buffers_are_refused(package: Package, session: Session) -> None:
    for buffer in (array("f", [0.0]), bytes(4 * package.config.vocab_size)):
        with pytest.raises(InternalError):
            session.eval([0], logits=buffer)
    assert session.position == 0


def test_logits_before_any_evaluation_are_an_error(session: Session) -> None:
    with pytest.raises(InternalError):
        session.logits()


def test_full_context_is_its_own_error_and_changes_nothing(session: Session) -> None:
    with pytest.raises(ContextFull):
        session.eval([1] * 257, mode=Logits.NONE)
    session.eval([1] * 256, mode=Logits.NONE)
    with pytest.raises(ContextFull):
        session.eval([1])
    assert session.position == 256


def test_cancel_from_another_thread(session: Session) -> None:
    other = threading.Thread(target=session.cancel)
    other.start()
    other.join()
    with pytest.raises(Cancelled):
        session.eval([1] * 64)
    session.eval([1])


def test_verify_reports_progress_and_passes_on_what_it_raises(package: Package) -> None:
    seen: list[tuple[int, int]] = []
    package.verify(lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package.verify(stop)


def test_sections_and_tensors(package: Package) -> None:
    assert (package.section(Section.METADATA) or b"").startswith(b"{")
    assert b"<role>" in (package.section(Section.CHAT_TEMPLATE) or b"")
    tensors = package.tensors()
    assert tensors[0].name == "model.word_embeddings.weight"
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    row = array("f", bytes(4 * package.config.hidden_size))
    package.read_rows(0, 5, 1, row)
    assert any(row)


def test_unknown_status_is_a_crash_and_known_ones_keep_their_code() -> None:
    assert status_error(3, "x").exit_code == 4
    assert status_error(5, "x").exit_code == 5
    assert status_error(8, "x").exit_code == 10
    assert status_error(99, "x").exit_code == 10
    assert isinstance(status_error(2, "x", 2), PackageError)
    assert status_error(2, "x", 2).slug == "package-missing"
    assert status_error(2, "x", 13).slug == "package-unreadable"


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.l3r"
    path.write_bytes(bytes(300))
    with pytest.raises(PackageError, match=r"damaged\.l3r: not an \.l3r package"):
        Package(path)
