"""Workspaces: memory is reused, grows with room, and is counted."""

from __future__ import annotations

import weakref

import pytest
import torch

from cuda_src import workspace as workspaces
from cuda_src.workspace import Workspace


def test_the_same_name_gives_the_same_memory_when_it_suffices():
    workspace = Workspace()
    first = workspace.take("a", (4, 5))
    again = workspace.take("a", (10,))
    assert again.shape == (10,)
    assert first.data_ptr() == again.data_ptr()
    assert workspace.bytes == workspace.peak_bytes == 80


def test_names_and_types_do_not_share_memory():
    workspace = Workspace()
    tensors = [workspace.take("a", (4,)), workspace.take("b", (4,)), workspace.take("a", (4,), torch.int32)]
    assert len({t.data_ptr() for t in tensors}) == 3
    assert [t.dtype for t in tensors] == [torch.float32, torch.float32, torch.int32]


def test_a_buffer_that_is_too_small_grows_by_a_thirty_second_at_least():
    workspace = Workspace()
    workspace.take("a", (320,))
    grown = workspace.take("a", (321,))
    assert workspace.bytes == 330 * 4
    assert workspace.take("a", (330,)).data_ptr() == grown.data_ptr()
    workspace.take("a", (1000,))
    assert workspace.bytes == workspace.peak_bytes == 4000


def test_the_memory_of_a_buffer_that_grows_is_free_before_the_larger_is_asked_for(monkeypatch):
    workspace, alive = Workspace(), []
    workspace.take("a", (10, 3))
    workspace.kept(("views",), lambda: workspace.take("a", (4,)))
    old = weakref.ref(workspace._buffers["a", torch.float32])
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *given, **facts: alive.append(old() is not None) or empty(*given, **facts)
    )
    workspace.take("a", (11, 3))
    assert alive == [False]


def test_a_buffer_that_is_released_is_gone_and_what_is_kept_stays():
    workspace = Workspace()
    workspace.take("a", (10,)), workspace.take("b", (10,))
    first = workspace.kept(("views",), lambda: [workspace.take("b", (3,))])
    workspace.release("a", torch.float32)
    workspace.release("never", torch.float32)
    assert workspace.bytes == 40
    assert workspace.kept(("views",), list) is first
    assert workspace.take("a", (5,)).shape == (5,)
    assert workspace.bytes == 60


def test_a_workspace_knows_what_lies_in_it():
    workspace = Workspace()
    part = workspace.take("a", (10,))[3:5].view(2, 1)
    assert workspace.holds(part)
    assert not workspace.holds(torch.zeros(3))
    workspace.take("a", (100,))
    assert not workspace.holds(part)


def test_zeros_clears_what_was_there():
    workspace = Workspace()
    workspace.take("a", (3,)).fill_(7.0)
    assert workspace.zeros("a", (2,)).tolist() == [0.0, 0.0]


def test_an_empty_shape_needs_no_memory():
    workspace = Workspace()
    assert workspace.take("a", (0, 59)).shape == (0, 59)
    assert workspace.bytes == 0


def test_what_is_kept_is_made_once_for_a_key():
    workspace, made = Workspace(), []
    for key in (("a", 1), ("a", 2), ("a", 1)):
        workspace.kept(key, lambda key=key: made.append(key) or key)
    assert made == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("grow", [lambda w: w.take("a", (11,)), lambda w: w.numbers(11)])
def test_what_is_kept_is_forgotten_when_a_buffer_moves(grow):
    workspace = Workspace()
    workspace.take("a", (10,)), workspace.numbers(10)
    first = workspace.kept(("views",), lambda: [workspace.take("a", (3,))])
    workspace.take("a", (10,))
    workspace.take("new", (3,))
    assert workspace.kept(("views",), list) is first
    grow(workspace)
    again = workspace.kept(("views",), lambda: [workspace.take("a", (3,))])
    assert again is not first
    assert again[0].data_ptr() == workspace.take("a", (3,)).data_ptr()


def test_a_buffer_that_grows_while_something_is_made_does_not_lose_it():
    workspace = Workspace()
    workspace.take("a", (10,))
    first = workspace.kept(("views",), lambda: [workspace.take("a", (20,))])
    assert workspace.kept(("views",), list) is first


def test_what_is_kept_has_an_end(monkeypatch):
    monkeypatch.setattr(workspaces, "_MOST_KEPT", 3)
    workspace = Workspace()
    for key in range(10):
        workspace.kept((key,), object)
    assert len(workspace._kept) <= 3


def test_memory_of_somebody_else_is_used_until_more_is_asked_for():
    work, theirs = Workspace(), torch.zeros(12)
    own = work.take("a", (4,))
    work.adopt("a", theirs)
    assert work.moves == 2  # What was there went, and something else came.
    work.adopt("a", theirs.view(12))
    assert work.moves == 2
    assert work.take("a", (3, 4)).data_ptr() == theirs.data_ptr() != own.data_ptr()
    assert work.capacity("a") == 12
    assert work.take("a", (13,)).data_ptr() != theirs.data_ptr()
