"""Gradients of tile instances, added to accumulators of the owners of their slots."""

from __future__ import annotations

import pytest
import torch

from cuda_src.exchange import SENT_GRADIENTS, add_to_owners
from cuda_src.layout import ACCUMULATOR_STRIDE, GRADIENT, GRADIENT_STRIDE
from cuda_src.operators import KernelSet

COMPILED = pytest.param("compiled", marks=pytest.mark.gpu)
TWO_GPUS = pytest.param("compiled, owners elsewhere", marks=[pytest.mark.gpu, pytest.mark.multigpu])


def device_of(where: str) -> torch.device:
    if not where.startswith("compiled"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    return torch.device("cuda", 0)


@pytest.mark.parametrize("where", ["reference", "portable", COMPILED, TWO_GPUS])
@pytest.mark.parametrize("lengths", [(7,), (0, 5, 0, 3), (1, 300, 0, 2000), (0, 1)])
@pytest.mark.parametrize("instances", [0, 1, 5000])
def test_every_instance_that_counts_is_added_once_to_its_slot(where, lengths, instances):
    device = device_of(where)
    elsewhere = device
    if "elsewhere" in where:
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        elsewhere = torch.device("cuda", 1)
        torch.zeros(1, device=device).to(elsewhere)  # Puts the other's memory within reach.
    generator = torch.Generator().manual_seed(len(lengths) + instances)
    slots = torch.randint(0, sum(lengths), (instances,), dtype=torch.int32, generator=generator)
    walked = torch.rand(instances, generator=generator) < 0.8
    wide = torch.randint(-8, 9, (instances, GRADIENT_STRIDE), generator=generator).float()  # Sums are exact.
    accumulators = [torch.ones(n, ACCUMULATOR_STRIDE, device=elsewhere) for n in lengths]
    for gpu in range(torch.cuda.device_count()):
        torch.cuda.synchronize(gpu)
    gradients = wide.to(device)[:, :GRADIENT]
    kernels = KernelSet(where.split(",")[0], device)
    add_to_owners(kernels, gradients, slots.to(device), walked.to(device), accumulators)
    for gpu in range(torch.cuda.device_count()):
        torch.cuda.synchronize(gpu)
    expected = torch.ones(sum(lengths), ACCUMULATOR_STRIDE)
    for slot, counts, row in zip(slots.tolist(), walked.tolist(), wide, strict=True):
        if counts:
            expected[slot, :SENT_GRADIENTS] += row[:SENT_GRADIENTS]
    found = torch.cat(accumulators).cpu()
    assert torch.equal(found[:, :SENT_GRADIENTS], expected[:, :SENT_GRADIENTS])


def test_more_owners_than_a_kernel_takes_are_refused():
    none = torch.empty(0)
    with pytest.raises(ValueError, match="at most 64 owners, got 65"):
        add_to_owners(KernelSet("reference"), none, none, none, [none] * 65)
