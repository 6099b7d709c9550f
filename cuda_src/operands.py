"""What operators are given and what they leave: the kernel set that computes, and the data of one view.

Shapes as in operators.py, which gives these names along.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Literal

import torch

from cuda_src import launches
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS, T_STOP, T_STOP_FLOOR, Convention

Footprint = Literal["ellipse", "square"]
MovedRows = Literal["dense", "visible", "touched"]
BatchRule = Literal["rows", "batch", "none"]
Part = Literal["all", "find", "own", "rest"]
"""Of a move: all; or first which Gaussians move, then those with splats that went to no other rank, and those with any
that did."""
Halo = Literal["exact", "none"]

LOSS_BLOCK = 32
"""Side of the blocks at whose borders `LossWindow("tile")` cuts SSIM's windows, pixels: a pair of tiles."""


@dataclass(frozen=True)
class LossWindow:
    """What SSIM's windows see, and so what a fused raster must keep at hand.

    kind: `exact`, the whole image; `tile`, cut at the borders of blocks of 32 x 32 pixels (and of the image) and
    renormalised; `l1`, no SSIM at all: the loss is L1 alone. offset: of `tile`, pixels x, y in [0, 32): block borders
    lie at multiples of 32 less the offset.
    """

    kind: Literal["exact", "tile", "l1"] = "exact"
    offset: tuple[int, int] = (0, 0)


WHOLE_IMAGE = LossWindow()


@dataclass(frozen=True)
class KernelSet:
    """Which kernels compute: back end x convention x footprint x precision.

    backend: `reference` (PyTorch, autograd), `portable` (Numba) or `compiled` (CUDA C++, on a GPU). t_stop: 0 means
    T_STOP_FLOOR. threads: CPU threads that one operator call may use.
    """

    backend: str = "portable"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    convention: Convention = CONVENTIONS["standard"]
    footprint: Footprint = "ellipse"
    precision: Literal["float32", "float64"] = "float32"
    t_stop: float = T_STOP
    threads: int = 1

    def __post_init__(self) -> None:
        if self.precision == "float64" and self.backend != "reference":
            raise ValueError(f"precision float64 needs the reference back end, not {self.backend}")

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.precision)

    @property
    def stop(self) -> float:
        """Transmittance at which compositing stops."""
        return self.t_stop if self.t_stop > 0 else T_STOP_FLOOR

    @property
    def module(self) -> ModuleType:
        """The back end, as sys.modules has it now; looked up at every operator, by several threads at once."""
        name = f"cuda_src.{self.backend}"
        __import__(name)  # What the statement does; import_module does more to find what is there.
        return sys.modules[name]

    @property
    def called(self) -> ModuleType:
        """The back end's module, for a call that counts as a launch; those of the CUDA library count themselves."""
        if self.backend != "compiled":
            launches.count()
        return self.module

    @property
    def moves_at_once(self) -> bool:
        """The back end has `project_backward_adam`."""
        return hasattr(self.module, "project_backward_adam")

    @property
    def takes_rooms(self) -> bool:
        """`project` and `bin_splats` of the back end can be given a `Room`."""
        return bool(getattr(self.module, "TAKES_ROOMS", False))

    @property
    def reads_bounds(self) -> bool:
        """`project` and `project_backward_adam` of the back end can be given bounds of groups (cuda_src/bounds.py)."""
        return bool(getattr(self.module, "READS_BOUNDS", False))

    @property
    def leaves_ids(self) -> bool:
        """`project` of the back end can leave ids where they are (`Splats.ids_by_row`)."""
        return bool(getattr(self.module, "LEAVES_IDS", False))

    @property
    def projects_in_place(self) -> bool:
        """`project` of the back end can put records where they travel or are kept."""
        return bool(getattr(self.module, "PROJECTS_IN_PLACE", False))


@dataclass(frozen=True)
class Room:
    """How much a view may need, so that the host need not read how much it does need.

    splats, instances: capacity. overflow: [1] int32 on the device, 0 before. Set to 1, and never cleared by an
    operator, when the view needs more; while it is set, no operator that is given it, or splats made with it, writes to
    Gaussians.
    """

    splats: int
    instances: int
    overflow: torch.Tensor


@dataclass(frozen=True)
class Splats:
    """The visible Gaussians of one view, in the order of their rows.

    rows: [V] int64, row of the Gaussian in its storage. ids: [V] int64, stable ids, which break ties of depth; int32
    where they are words of records that ranks have sent (cuda_src/exchange.py).
    records: [V, RECORD] real, columns as in layout.py; rows may lie further apart. live, overflow: None unless the view
    was given a room; then V is the room, live[0] (int64 on the device) says how many rows are in use, more than V if
    the room was too small; live[1] of them are not drawn, since their colour is not finite (record depth NaN): they
    have no instance and are never moved. live[2]: of splats in their place (`project`), instances in the whole image.
    overflow is the room's. ids_by_row: ids are those of all rows of the storage,
    and splat v has ids[rows[v]]; only where `project` was asked for it.
    """

    rows: torch.Tensor
    ids: torch.Tensor
    records: torch.Tensor
    live: torch.Tensor | None = None
    overflow: torch.Tensor | None = None
    ids_by_row: bool = False

    @property
    def count(self) -> int:
        return int(self.rows.shape[0])


@dataclass
class Pace:
    """How far a step moves Gaussians. rates: [59] real, on the CPU, learning rate of each column at batch 1.
    images_seen: by the job, the step's included.

    Read when kernels are launched, also those of a tape that is played: so that one object, changed from step to step,
    serves them all.
    """

    rates: torch.Tensor
    images_seen: int


NOWHERE, ELSEWHERE = -1, -2
"""Places of splats among what their rank keeps: none, since they are drawn nowhere; none that says all, since they went
to other ranks too."""


@dataclass(frozen=True)
class Kept:
    """Gradients that a rank has of its own splats, unsummed. places: [V] int32, each splat's row, NOWHERE or ELSEWHERE.

    gradients: [R, GRADIENT] real. Without places all splats have theirs there, in their own order; without gradients
    all are ELSEWHERE. zeros: [1] int64; rows of these splats that are exactly zero are added to it.
    """

    places: torch.Tensor | None
    gradients: torch.Tensor | None
    zeros: torch.Tensor


@dataclass(frozen=True)
class Seen:
    """One view of a step, as the optimizer is told of it. gradients: [V, GRADIENT] real, by the splats' records; or
    [V, SENT_GRADIENTS] contiguous, as they travel between ranks (cuda_src/exchange.py).

    kept: where those of splats lie that went to no other rank, which are there first (`Part`); None where no splat goes
    anywhere.
    """

    splats: Splats
    camera: Camera
    gradients: torch.Tensor
    kept: Kept | None = None


@dataclass(frozen=True)
class Bins:
    """Tile instances of one view, grouped by tile, front to back (view depth, then id) within a tile.

    tiles: [K] int32, row-major tile numbers, ascending. starts: [K + 1] int64, tile k's instances are
    starts[k]:starts[k + 1]. splat: [M] int32, row of the splat in Splats. slot: [M] int64, position of the
    instance in splat-major order; instances of splat v occupy slots splat_starts[v]:splat_starts[v + 1], so
    that per-instance gradients sum by splat in a fixed order; None where a back end sums them in no fixed order.
    splat_starts: [V + 1] int64; None with a room. needed: None unless the view was given a room; then M is the room,
    starts end within it, and needed is [4] int64 on the device: splats and undrawn ones (Splats.live), instances, and
    the room's overflow as it was once they were listed.
    """

    tiles: torch.Tensor
    starts: torch.Tensor
    splat: torch.Tensor
    slot: torch.Tensor | None
    splat_starts: torch.Tensor | None
    needed: torch.Tensor | None = None

    @property
    def instances(self) -> int:
        return int(self.splat.shape[0])


@dataclass(frozen=True)
class Raster:
    """What compositing leaves at each pixel of the listed tiles; pixels of other tiles hold zeros.

    colour: [H, W, 3], over the background that the forward was given. transmittance: [H, W], what is left after the
    last blended splat. depth: [H, W], sum of T alpha z (world units). stopped: [H, W] uint8, 1 where compositing
    stopped: nothing behind may be blended there. last: [H, W] int32, instances of the pixel's tile up to and with the
    last blended one (0: none). stop_depth: [H, W], view depth of the splat that would have brought transmittance below
    the stop; +inf where compositing did not stop.
    """

    colour: torch.Tensor
    transmittance: torch.Tensor
    depth: torch.Tensor
    stopped: torch.Tensor
    last: torch.Tensor
    stop_depth: torch.Tensor


@dataclass(frozen=True)
class Loss:
    """Loss of the pixels of the listed tiles, as their share of the whole image's mean; regions add up.

    value, l1, ssim: 0-d tensors: value = (1 - weight) l1 + weight (share - ssim), where share is the mask-weighted
    share of the image these tiles hold. gradient: [H, W, 3], d(value of the whole image) / d(image) at these pixels;
    zeros elsewhere.
    """

    value: torch.Tensor
    l1: torch.Tensor
    ssim: torch.Tensor
    gradient: torch.Tensor


@dataclass(frozen=True)
class Fused:
    """What forward, loss and backward in one operator leave of a view.

    value, l1, ssim: 0-d tensors, as in Loss. gradients: [V, GRADIENT] real, as of raster_backward. contributors:
    [K] int64, instances that the pixels of each listed tile went through, summed: what the tile cost.
    """

    value: torch.Tensor
    l1: torch.Tensor
    ssim: torch.Tensor
    gradients: torch.Tensor
    contributors: torch.Tensor
