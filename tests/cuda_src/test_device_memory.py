"""One range of addresses over several devices: what lies where, who sees it, and that nothing is left behind."""

from __future__ import annotations

import gc

import pytest
import torch

from cuda_src.compiled.memory import GRANULE, Part, SharedMemory, check_managed, check_reach, tensor_at

FLOATS = GRANULE // 4


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 3, 2), (0, 3)])
def test_a_tensor_at_an_address_is_the_memory_itself_and_never_frees_it(shape):
    memory = torch.arange(12.0)
    view = tensor_at(memory.data_ptr(), shape, torch.device("cpu"))
    assert view.is_contiguous()
    assert torch.equal(view, memory[: view.numel()].view(shape))
    view += 1
    assert torch.equal(view.flatten(), memory[: view.numel()])
    del view
    gc.collect()
    assert torch.equal(memory % 1, torch.zeros(12))


def test_a_device_that_cannot_reach_another_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) != (2, 0))
    check_reach([0, 1])
    with pytest.raises(ValueError, match="GPU 2 cannot reach the memory of GPU 0"):
        check_reach([0, 1, 2])


def test_managed_memory_takes_half_of_what_is_free_on_the_fullest_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ([1000, 600][device], 5000))
    check_managed(300, [0, 1])
    with pytest.raises(MemoryError, match="301 bytes: at most half of the 600 bytes"):
        check_managed(301, [0, 1])


@pytest.fixture
def gpus(request) -> list[int]:
    """The numbers of so many GPUs."""
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    for gpu in range(request.param):
        torch.zeros(1, device=f"cuda:{gpu}")
    return list(range(request.param))


on_gpus = pytest.mark.parametrize(
    "gpus",
    [pytest.param(1, marks=pytest.mark.gpu), pytest.param(2, marks=[pytest.mark.gpu, pytest.mark.multigpu])],
    indirect=True,
)


@on_gpus
@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_what_one_gpu_writes_every_gpu_reads(gpus, kind):
    parts = [Part(k * GRANULE, (k + 1) * GRANULE, gpus[k % len(gpus)]) for k in range(4)]
    memory = SharedMemory(parts, gpus, kind)
    views = [memory.seen_by(torch.device("cuda", gpu), (4 * FLOATS,)) for gpu in gpus]
    for number, (gpu, view) in enumerate(zip(gpus, views, strict=True)):
        assert view.device == torch.device("cuda", gpu)
        assert view.data_ptr() == views[0].data_ptr()
        torch.add(torch.arange(4 * FLOATS, dtype=torch.float32, device=view.device), number, out=view)
        view[FLOATS - 1 : FLOATS + 1] *= -1
        torch.cuda.synchronize(gpu)
        for other in views:
            assert other[FLOATS - 1].item() == -(FLOATS - 1 + number)
            assert other[FLOATS].item() == -(FLOATS + number)
            assert other[[0, -1]].tolist() == [number, 4 * FLOATS - 1 + number]
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.seen_by(torch.device("cuda", gpus[0]), (1,))


@on_gpus
def test_closing_gives_the_memory_back(gpus):
    """A quarter of it at a time, for other processes may use the GPU: five would not fit beside one another."""
    quarter = torch.cuda.get_device_properties(gpus[0]).total_memory // 4 // GRANULE * GRANULE
    for _ in range(5):
        memory = SharedMemory([Part(0, quarter, gpus[-1])], gpus)
        view = memory.seen_by(torch.device("cuda", gpus[0]), (quarter // 4,))
        view[-1] = 3.0
        assert view[-1].item() == 3.0
        memory.close()
        memory.close()


@on_gpus
def test_memory_that_cannot_be_had_is_refused_in_cudas_words_and_leaves_the_gpu_as_it_was(gpus):
    much = torch.cuda.get_device_properties(gpus[0]).total_memory // GRANULE * GRANULE
    with pytest.raises(RuntimeError, match="map_memory: out of memory"):
        SharedMemory([Part(0, GRANULE, gpus[-1]), Part(GRANULE, GRANULE + much, gpus[0])], gpus)
    with pytest.raises(RuntimeError, match="map_memory: invalid argument"):
        SharedMemory([Part(0, GRANULE // 2, gpus[0])], gpus)
    assert torch.zeros(1, device=f"cuda:{gpus[0]}").item() == 0
    memory = SharedMemory([Part(0, GRANULE, gpus[0])], gpus)
    assert memory.seen_by(torch.device("cuda", gpus[0]), (4,)).zero_().sum().item() == 0
    memory.close()
