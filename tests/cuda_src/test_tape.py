"""What is done while a tape records is done again when it is played, and nothing else."""

from __future__ import annotations

import threading

import pytest

from cuda_src.tape import Tape, act, hold, off_tape, on_tape
from cuda_src.workspace import Workspace


def test_actions_are_done_once_when_recorded_and_again_in_their_order_whenever_played():
    done: list[str] = []
    tape = Tape()
    with tape.recording():
        assert act(lambda: done.append("a") or "given back") == "given back"
        done.append("not an action")
        act(lambda: done.append("b"))
    act(lambda: done.append("after it"))
    assert done == ["a", "not an action", "b", "after it"]
    tape.play()
    tape.play()
    assert done[4:] == ["a", "b"] * 2


def test_what_an_action_does_by_act_itself_is_done_once_a_play():
    done: list[str] = []

    def outer() -> None:
        assert not on_tape()
        act(lambda: done.append("inner"))

    tape = Tape()
    with tape.recording():
        assert on_tape()
        act(outer)
    tape.play()
    assert done == ["inner", "inner"]


def test_what_is_off_the_tape_and_other_threads_actions_are_not_on_it():
    done: list[str] = []
    tape = Tape()
    with tape.recording():
        with off_tape():
            act(lambda: done.append("off"))
        other = threading.Thread(target=lambda: act(lambda: done.append("other")))
        other.start()
        other.join()
        act(lambda: done.append("on"))
    tape.play()
    assert done == ["off", "other", "on", "on"]


def test_a_recording_that_fails_ends():
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), Tape().recording():
        act(fails)
    assert not on_tape()


def test_what_a_workspace_has_ready_lives_as_long_as_the_tape_that_was_recorded_with_it():
    work, tape = Workspace(), Tape()
    work.kept(("before",), lambda: [1])
    with tape.recording():
        for key, made in (("before", [0]), ("new", [2])):
            work.kept((key,), lambda made=made: made)
        assert hold("itself") == "itself"
    work.kept(("after",), lambda: [3])
    assert tape.held == [[1], [2], "itself"]
