"""What crosses between hosts beside the devices: begun in the order of the calls, when it has come to the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.host_copies import HostCopies, HostCopy, Pinned
from strategies.distribution.host_group import HostGroup


class Copied:
    """An event of a device that comes to it when the test says so, or when somebody waits."""

    past = False

    def query(self) -> bool:
        return self.past

    def synchronize(self) -> None:
        self.past = True


class Gloo:
    """Says in `begun` what it was asked to send, and gives it back when waited for."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.waits = self.barriers = 0

    def exchange(self, received, rows, receive_counts, send_counts, group, async_op):
        self.begun.append(rows.flatten().tolist())

        def wait() -> None:
            self.waits += 1
            received.copy_(rows)

        return SimpleNamespace(wait=wait, is_completed=lambda: False)

    def barrier(self, group) -> None:
        self.barriers += 1


@pytest.fixture
def gloo(monkeypatch) -> Gloo:
    made = Gloo()
    monkeypatch.setattr(dist, "all_to_all_single", made.exchange)
    monkeypatch.setattr(dist, "barrier", made.barrier)
    return made


@pytest.fixture
def group(monkeypatch) -> HostGroup:
    """Whose rows are on their way until the test says that they are there, `group.on_the_way`."""
    made = HostGroup(SimpleNamespace(), 0, torch.device("cpu"))
    made.on_the_way = []

    def start(self: HostCopies, tensor: torch.Tensor) -> HostCopy:
        pinned = Pinned(tensor.clone(), Copied(), SimpleNamespace(), [])
        made.on_the_way.append(HostCopy(pinned.memory, pinned))
        return made.on_the_way[-1]

    monkeypatch.setattr(HostCopies, "start", start)
    return made


def rows(first: int) -> torch.Tensor:
    return torch.tensor([[first], [first + 1]])


def test_the_caller_starts_what_has_come_whenever_it_comes_by_and_never_before_what_was_asked_first(gloo, group):
    first, second = (group.exchange("a", rows(n), [1, 1], [1, 1]) for n in (10, 20))
    group.on_the_way[1].pinned.copied.past = True
    group.start_ready()
    assert gloo.begun == []
    group.on_the_way[0].pinned.copied.past = True
    group.start_ready()
    assert gloo.begun == [[10, 11], [20, 21]]
    assert gloo.waits == 0
    assert first.result().flatten().tolist() == [10, 11]
    assert second.result().flatten().tolist() == [20, 21]


def test_who_asks_for_a_result_waits_for_its_rows_and_starts_all_that_comes_before_it(gloo, group):
    asked = [group.exchange("a", rows(n), [1, 1], [1, 1]) for n in (10, 20, 30)]
    assert asked[1].result().flatten().tolist() == [20, 21]
    assert gloo.begun == [[10, 11], [20, 21]]
    group.barrier()
    assert gloo.begun[2:] == [[30, 31]]
    assert (gloo.waits, gloo.barriers) == (4, 1)


def test_rows_that_are_all_the_same_are_copied_once_and_cross_as_many(gloo, group):
    one = group.exchange("a", torch.tensor([[7, 8]]).expand(3, -1), [1, 1, 1], [1, 1, 1])
    assert group.on_the_way[0].memory.shape == (1, 2)
    assert one.result().tolist() == [[7, 8]] * 3


def test_a_caller_that_is_long_in_coming_keeps_nobody_waiting(gloo, group, monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(group._closed, "wait", lambda seconds: bool(gloo.begun))
    group.exchange("a", rows(10), [1, 1], [1, 1])
    group.on_the_way[0].pinned.copied.past = True
    group._look_in(torch.device("cpu"))
    assert gloo.begun == [[10, 11]]


def test_what_lies_on_the_host_is_copied_as_it_is_now():
    flag = torch.zeros(1)
    copy = HostCopies().start(flag)
    flag.fill_(1)
    assert copy.there
    assert copy.read(bool) is False


def test_what_could_not_be_started_is_tried_again_with_the_same_rows(gloo, group, monkeypatch):
    one = group.exchange("a", rows(10), [1, 1], [1, 1])

    def refused(*given, **named):
        raise OSError("no such peer")

    with monkeypatch.context() as broken:
        broken.setattr(dist, "all_to_all_single", refused)
        with pytest.raises(OSError, match="no such peer"):
            one.result()
    idle = group.on_the_way[0].pinned.idle
    assert len(idle) == 1
    idle[0].memory.zero_()  # Another copy's by now.
    assert one.result().flatten().tolist() == [10, 11]
    assert len(idle) == 1


def test_counts_that_a_rank_tells_itself_are_those_of_the_call():
    comm = LocalCommunicator()
    counts = torch.tensor([[3, 4]])
    told = comm.counts("a", counts.expand(1, -1))
    counts.zero_()  # By the next step, which is queued before this one's are asked for.
    assert told.wait().tolist() == [[3, 4]]
    assert comm.ledger.metadata["a"].tolist() == [[16]]


@pytest.mark.gpu
def test_copies_of_like_sizes_share_memory_one_after_another():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    copies, used = HostCopies(), set()
    for size in range(65, 129):
        tensor = torch.arange(size, device="cuda").view(1, -1)
        copy = copies.start(tensor)
        tensor.zero_()
        used.add(copy.memory.data_ptr())
        assert copy.read(torch.Tensor.tolist) == [list(range(size))]
    assert len(used) == 1
