"""adam_rows, and gradients of splats that go to Adam at once: what the kernels of adam.cu and move.cu are given."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import partial

import torch

from cuda_src import layout
from cuda_src.bounds import groups_of
from cuda_src.compiled.bindings import Launch, address, call, count
from cuda_src.compiled.exchange import rows_of
from cuda_src.compiled.raster import as_real
from cuda_src.compiled.seen import ALIGNMENT, SeenSplats, SplatGradients
from cuda_src.compiled.view import View, view_of
from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.operators import BatchRule, Kept, KernelSet, MovedRows, Pace, Part, Seen
from cuda_src.tape import act
from cuda_src.workspace import Workspace


class Rule(ctypes.Structure):
    """What is the same for all rows of a step; the same struct as in adam.cuh."""

    _fields_ = (
        ("log_beta1", ctypes.c_float),
        ("log_beta2", ctypes.c_float),
        ("one_minus_beta1", ctypes.c_float),
        ("one_minus_beta2", ctypes.c_float),
        ("correction1", ctypes.c_float),
        ("correction2", ctypes.c_float),
        ("epsilon", ctypes.c_float),
    )

    @classmethod
    def of(cls, images_seen: int, beta1: float, beta2: float, epsilon: float) -> Rule:
        """In float64 up to here: 1 - 0.999 has few digits left in float32."""
        return cls(
            _log(beta1),
            _log(beta2),
            1 - beta1,
            1 - beta2,
            1 / (1 - beta1**images_seen),
            1 / math.sqrt(1 - beta2**images_seen),
            epsilon,
        )


def _log(beta: float) -> float:
    """Without a moment, beta 0, everything is new: beta^v = exp(-inf)."""
    return math.log(beta) if beta > 0 else -math.inf


def adam_rows(
    kernels: KernelSet,
    parameters: torch.Tensor,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    rows: torch.Tensor,
    gradients: torch.Tensor,
    views: torch.Tensor,
    rates: torch.Tensor,
    images_seen: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """See `cuda_src.operators.adam_rows`."""
    rule = Rule.of(images_seen, beta1, beta2, epsilon)
    call(
        "adam_rows", parameters.device, parameters, moment1, moment2, rows.contiguous(), gradients.contiguous(),
        views.contiguous(), count(len(rows)), as_real(rates), ctypes.byref(rule),
    )  # fmt: skip


class Sight(ctypes.Structure):
    """One view of a step; the same struct as in move.cu."""

    _fields_ = (
        ("view", View),
        ("seen", SeenSplats),
        ("overflow", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("returned", ctypes.c_void_p),
        ("waits", ctypes.c_int),
    )


class Step(ctypes.Structure):
    """What is the same for all rows; the same struct as in move.cu."""

    _fields_ = (
        ("parameters", ctypes.c_void_p),
        ("moment1", ctypes.c_void_p),
        ("moment2", ctypes.c_void_p),
        ("rates", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("views", ctypes.c_int),
        ("degree", ctypes.c_int),
        ("moves", ctypes.c_int),
        ("part", ctypes.c_int),
        ("average", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("rule", Rule),
        ("bounds", ctypes.c_void_p),
        ("sights", ctypes.c_void_p),
        ("splats", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
    )


_MOVES: dict[MovedRows, int] = {"visible": 0, "touched": 1, "dense": 2}
"""enum Moves in move.cu."""
_PARTS: dict[Part, int] = {"all": 0, "find": 1, "own": 1, "rest": 2}
"""enum Part in move.cu."""


def project_backward_adam(
    kernels: KernelSet,
    parameters: torch.Tensor,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    views: Sequence[Seen],
    sh_degree: int,
    workspace: Workspace,
    pace: Pace,
    beta1: float,
    beta2: float,
    epsilon: float,
    rows: MovedRows,
    batch_rule: BatchRule,
    bounds: torch.Tensor | None,
    part: Part,
) -> None:
    """See `cuda_src.operators.project_backward_adam`: no [V, 59] gradient in memory, nothing read by the host.

    ValueError for tables that do not begin at a multiple of 16 bytes.
    """
    n, batch = len(parameters), len(views)
    if n == 0:
        return
    tables = _table(parameters), _table(moment1), _table(moment2)
    sights = []
    for number, view in enumerate(views):
        travelled = view.gradients.shape[1] == SENT_GRADIENTS
        own = SplatGradients.of(view.splats, None if travelled else view.gradients, f"move.{number}", workspace)
        places, kept, zeros, waits = _kept(view.kept)
        returned = address(view.gradients) if travelled else None
        rest = address(view.splats.overflow), places, kept, zeros, returned, waits
        sights.append((view_of(kernels, view.camera), own, rest))
    given = (
        *tables, n, sh_degree, _MOVES[rows], averaged_over(rows, batch_rule, batch),
        1 / batch if batch_rule == "none" else 1.0, address(bounds),
    )  # fmt: skip
    key = "move", *given, *(each for view, own, rest in sights for each in (view, own.key, rest))
    move = workspace.kept(key, lambda: _Move(workspace, parameters.device, sights, *given))
    act(partial(move, pace, (beta1, beta2, epsilon), part))


class _Move:
    """A step of given tables, views and gradients: what changes from one to the next is put in as it is called."""

    def __init__(
        self,
        workspace: Workspace,
        device: torch.device,
        sights: Sequence[tuple[View, SplatGradients, tuple[int | None, ...]]],
        parameters: int,
        moment1: int,
        moment2: int,
        n: int,
        sh_degree: int,
        moves: int,
        average: int,
        scale: float,
        bounds: int | None,
    ) -> None:
        batch, groups = len(sights), groups_of(n)
        work = (
            workspace.take("move.sights", (batch * ctypes.sizeof(Sight),), torch.uint8),
            # And behind them, where all is cleared at once, what two lists have and was taken from them, and a byte a
            # group: which wait.
            workspace.take("move.splats", (batch * groups + 2 + -(-groups // 8), 2), torch.int32),
            workspace.take("move.groups", (2 * groups,), torch.int32),
        )
        self._step = Step(
            parameters, moment1, moment2, address(workspace.take("move.rates", (layout.PARAMETERS,))), n, batch,
            sh_degree, moves, _PARTS["all"], average, scale, Rule(), bounds, *(address(tensor) for tensor in work),
        )  # fmt: skip
        self._rates = (ctypes.c_float * layout.PARAMETERS)()
        given = (Sight * batch)(*(Sight(view, own.struct, *rest) for view, own, rest in sights))
        sights_and_step, rates = (ctypes.byref(given), ctypes.byref(self._step)), ctypes.byref(self._rates)
        move = Launch("move_found", device, *sights_and_step)
        self._launches = {
            "all": Launch("project_backward_adam", device, *sights_and_step, rates),
            "find": Launch("find_moving", device, *sights_and_step, rates),
            "own": move,
            "rest": move,
        }

    def __call__(self, pace: Pace, rule: tuple[float, float, float], part: Part) -> None:
        # Kernels have their own copy of all of this as soon as they are launched.
        self._step.rule, self._step.part = Rule.of(pace.images_seen, *rule), _PARTS[part]
        self._rates[:] = pace.rates.tolist()
        self._launches[part]()


def _kept(kept: Kept | None) -> tuple[int | None, int | None, int | None, bool]:
    """Addresses of places, gradients and zeros, and whether all splats wait."""
    if kept is None:
        return None, None, None, False
    own = None if kept.gradients is None else rows_of(kept.gradients, layout.GRADIENT_STRIDE)
    return address(kept.places), own, address(kept.zeros), own is None


def averaged_over(rows: MovedRows, batch_rule: BatchRule, batch: int) -> int:
    """Views that every row of a step averages over; 0: those that see it."""
    if batch_rule == "none":
        return 1
    return batch if rows == "dense" or batch_rule == "batch" else 0


def _table(table: torch.Tensor) -> int:
    begins = address(table)
    assert begins is not None
    if begins % ALIGNMENT:
        raise ValueError(f"expected a table that begins at a multiple of {ALIGNMENT} bytes, got address {begins:#x}")
    return begins
