"""A prefix that is reused though it differs, a checkpoint that is lost too early, the start that is given up."""

from __future__ import annotations

import random

import pytest

from launcher.timeline import Timeline, common_length
from tests.support.fake_engine import FakeSession


def session_with(slots: int) -> FakeSession:
    return FakeSession(checkpoints=slots)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([2], [1], 0)],
)
def test_common_length(left: list[int], right: list[int], expected: int) -> None:
    assert common_length(left, right) == common_length(right, left) == expected


def test_what_continues_the_session_is_kept() -> None:
    session = session_with(0)
    session.eval([1, 2, 3])
    assert Timeline(session).agree([1, 2, 3, 4]) == 3
    assert (session.resets, session.timeline) == (0, [1, 2, 3])


def test_the_last_id_is_always_evaluated() -> None:
    session = session_with(2)
    timeline = Timeline(session)
    session.eval([1, 2])
    timeline.keep(base=True)
    session.eval([3])
    assert timeline.agree([1, 2, 3]) == 2
    assert session.timeline == [1, 2]


def test_without_checkpoints_a_difference_starts_again() -> None:
    session = session_with(0)
    timeline = Timeline(session)
    session.eval([1, 2, 3])
    timeline.keep(base=False)
    assert timeline.agree([1, 2, 4, 5]) == 0
    assert session.resets == 1


def test_the_nearest_checkpoint_before_the_difference_is_taken() -> None:
    session = session_with(4)
    timeline = Timeline(session)
    for ids in ([1, 2], [3, 4], [5, 6]):
        session.eval(ids)
        timeline.keep(base=session.position == 2)
    session.eval([7])
    assert timeline.agree([1, 2, 3, 4, 5, 9]) == 4
    assert session.timeline == [1, 2, 3, 4]
    assert session.resets == 0


def test_the_base_outlasts_all_turns_and_the_oldest_turn_goes_first() -> None:
    session = session_with(3)
    timeline = Timeline(session)
    for place in range(1, 6):
        session.eval([place])
        timeline.keep(base=place == 1)
    assert sorted(len(ids) for ids in session.slots.values()) == [1, 4, 5]


def test_slots_that_a_return_emptied_are_used_first() -> None:
    session = session_with(3)
    timeline = Timeline(session)
    for place in (1, 2, 3):
        session.eval([place])
        timeline.keep(base=place == 1)
    assert timeline.agree([1, 2, 9]) == 2  # the slot at 3 is empty now
    session.eval([9])
    timeline.keep(base=False)
    assert sorted(len(ids) for ids in session.slots.values()) == [1, 2, 3]
    session.eval([8])
    timeline.keep(base=False)
    assert sorted(len(ids) for ids in session.slots.values()) == [1, 3, 4]


def test_one_slot_serves_the_turns() -> None:
    session = session_with(1)
    timeline = Timeline(session)
    session.eval([1])
    timeline.keep(base=True)
    session.eval([2])
    timeline.keep(base=False)
    assert session.checkpoint(0) == 2


def test_forgetting_goes_back_to_the_base() -> None:
    session = session_with(2)
    timeline = Timeline(session)
    session.eval([1])
    timeline.keep(base=True)
    session.eval([2, 3])
    timeline.forget()
    assert (session.timeline, session.resets) == ([1], 0)
    bare = session_with(0)
    bare.eval([1])
    Timeline(bare).forget()
    assert (bare.timeline, bare.resets) == ([], 1)


def test_whatever_is_asked_the_session_ends_with_the_prompt() -> None:
    generator = random.Random(4)
    for slots in (0, 1, 2, 4):
        session = session_with(slots)
        timeline = Timeline(session)
        ids = [0]
        for _ in range(300):
            keep = generator.randrange(len(ids) + 1)
            ids = ids[:keep] + [generator.randrange(3) for _ in range(generator.randrange(1, 8))]
            reused = timeline.agree(ids)
            assert reused < len(ids)
            assert session.timeline == ids[:reused]
            middle = generator.randrange(reused, len(ids) + 1)
            session.eval(ids[reused:middle])
            timeline.keep(base=generator.random() < 0.1)
            session.eval(ids[middle:])
            assert session.timeline == ids
