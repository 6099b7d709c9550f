"""Workspaces: memory is reused, grows with room, and is counted."""

from __future__ import annotations

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


def test_a_buffer_that_is_too_small_grows_by_a_half_at_least():
    workspace = Workspace()
    workspace.take("a", (100,))
    grown = workspace.take("a", (101,))
    assert workspace.bytes == 150 * 4
    assert workspace.take("a", (150,)).data_ptr() == grown.data_ptr()
    workspace.take("a", (1000,))
    assert workspace.bytes == workspace.peak_bytes == 4000


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
