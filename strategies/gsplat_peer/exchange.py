"""gsplat's own exchange between GPUs, entered in our books as it happens; and its packed form, repaired.

gsplat shares the work as Grendel does (Zhao et al. 2024, section 4), by whole images: each GPU projects its Gaussians
for the cameras of all, sends what it projected to the camera's GPU, renders there, and autograd sends gradients back.
What its collectives are given goes to the ledger. To each rank, with C cameras a rank (1 here):

    counts and cameras   packed 4 + 100 C + 8 B, dense 4 + 100 C B     metadata
    forward              48 B a row: radius 2 int32; mean 2, depth, conic 3, opacity, colour 3 float32
    ids                  16 B a row, packed only: camera and Gaussian, int64     metadata
    backward             40 B a row: gradients of the floats, in the other direction

A row is a pair of camera and Gaussian: packed those that are visible, dense all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import torch

from strategies.distribution.communicator import Communicator

FORWARD, BACKWARD = "exchange_forward", "exchange_backward"


class PeerExchange:
    """Stands between `gsplat.rasterization` and the collectives of gsplat that it calls, on one rank.

    Version 1.5.3 tells its tile lists which image each packed row belongs to by what it sent, not by what it received,
    and reads past the end: here they are given what came. Its collectives ask the device for their counts again and
    again; here they are asked for once, since the ledger must know them. All else is as it is in the package.
    """

    def __init__(self, comm: Communicator):
        self._comm = comm
        self._theirs: dict[str, Callable[..., Any]] = {}
        self._counts: tuple[list[int], list[int]] = [], []
        self._ids: Sequence[torch.Tensor] = ()

    def around(self, rasterization: Callable[..., Any]) -> Callable[..., Any]:
        """gsplat's function with ours in the place of those it calls; the package itself stays as it is."""
        assert isinstance(rasterization, FunctionType)
        ours = {
            "all_gather_int32": self._gather_number,
            "all_gather_tensor_list": self._gather_tensors,
            "all_to_all_int32": self._exchange_counts,
            "all_to_all_tensor_list": self._exchange_rows,
            "isect_tiles": self._list_tiles,
        }
        known = rasterization.__globals__
        self._theirs = {name: known[name] for name in ours}
        copy = FunctionType(rasterization.__code__, {**known, **ours}, "rasterization", rasterization.__defaults__)
        copy.__kwdefaults__ = rasterization.__kwdefaults__
        return copy

    def _gather_number(self, world_size: int, value: int, device: torch.device | None = None) -> list[int]:
        with self._metadata(4):
            return self._theirs["all_gather_int32"](world_size, value, device=device)

    def _gather_tensors(self, world_size: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        with self._metadata(sum(t.numel() * t.element_size() for t in tensors)):
            return self._theirs["all_gather_tensor_list"](world_size, tensors)

    def _exchange_counts(
        self, world_size: int, values: list[torch.Tensor], device: torch.device | None = None
    ) -> list[torch.Tensor]:
        with self._metadata(values[0].element_size()):
            received = self._theirs["all_to_all_int32"](world_size, values, device=device)
            every = torch.stack([*values, *received]).tolist()
        self._counts = every[:world_size], every[world_size:]
        if not sum(self._counts[0]):
            raise ValueError("gsplat 1.5.3 fails where no view of a step sees any Gaussian of a rank, as here")
        return received

    def _exchange_rows(
        self, world_size: int, tensors: list[torch.Tensor], splits: Sequence[Any], output_splits: Sequence[Any]
    ) -> list[torch.Tensor]:
        """The rows of all tensors side by side; counts are numbers where dense, tensors on the device where packed."""
        packed = isinstance(splits[0], torch.Tensor)
        to, came = self._counts if packed else (list(splits), list(output_splits))
        row = sum(math.prod(t.shape[1:]) for t in tensors) * tensors[0].element_size()
        ids = tensors[0].dtype == torch.int64
        out, back = [n * row for n in to], [n * row for n in came]
        with self._comm.accompany(FORWARD, out, back, metadata=ids):
            received = self._theirs["all_to_all_tensor_list"](world_size, tensors, to, output_splits=came)
        if ids:
            self._ids = received
        if received[0].requires_grad:
            self._accompany_back(received[0], back, out)
        return received

    def _list_tiles(self, *arguments: Any, image_ids: torch.Tensor | None, **named: Any) -> Any:
        if image_ids is not None:
            image_ids, _ = self._ids
            self._ids = ()
        return self._theirs["isect_tiles"](*arguments, image_ids=image_ids, **named)

    def _accompany_back(self, received: torch.Tensor, bytes_to: list[int], bytes_from: list[int]) -> None:
        """Be there when autograd sends the gradients of what was received back to where it came from."""
        node = received.grad_fn
        while node is not None and "AlltoAll" not in node.name():
            node = node.next_functions[0][0]
        assert node is not None
        crossing = ExitStack()

        def before(_: Any) -> None:
            crossing.enter_context(self._comm.accompany(BACKWARD, bytes_to, bytes_from))

        def after(_: Any, __: Any) -> None:
            crossing.close()

        node.register_prehook(before)
        node.register_hook(after)

    def _metadata(self, size: int) -> Any:
        """So many bytes to every rank, and from every rank."""
        sizes = [size] * self._comm.ranks
        return self._comm.accompany(FORWARD, sizes, sizes, metadata=True)
