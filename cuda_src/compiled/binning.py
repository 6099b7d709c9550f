"""bin_splats: what the kernels of bin.cu, bin_list.cu and bin_sort.cu are given."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import ReplayedLaunch, address, call, count
from cuda_src.compiled.lent import lent, lent_bytes
from cuda_src.compiled.raster import aligned_records, as_real
from cuda_src.compiled.scratch import Scratch, scratch_bytes
from cuda_src.compiled.view import view_of
from cuda_src.operators import Bins, KernelSet, Room, Splats
from cuda_src.workspace import Workspace

_MOST_INSTANCES = 1 << 31
"""A position among instances is the sum of two numbers of 31 bits: list_instances in bin_list.cu."""
_PITCH = 64
"""Planes begin at multiples of so many words: 256 bytes."""
_SPLAT_PLANES = 5
"""Depth key, number of tiles, two words of tiles, and the number of a wide splat: struct Work in bin.cuh."""
_INSTANCE_PLANES = 4
"""Depth key and splat of each entry of a list, and those of long lists by bucket: struct Lists in bin.cuh."""
_SORTED = 4096
"""Entries that a block sorts: SORTED in bin.cuh."""
_BUCKET = 1536
"""Entries of a long list for which it has a bucket: BUCKET in bin.cuh."""
_BUCKET_WORDS, _LONG_LIST_WORDS, _SHARE_WORDS = 6, 2, 2
"""Words of struct Bucket, of LongList, and of a share: bin.cuh."""
_COUNTS = 5
"""Words of struct Counts in bin.cuh."""
_SPLAT_STARTS = "bin.splat_starts", torch.int64


class Given(ctypes.Structure):
    """The view's splats and what limits their instances; the same struct as in bin.cuh."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("splats", ctypes.c_int64),
        ("live", ctypes.c_void_p),
        ("overflow", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("subtiles", ctypes.c_void_p),
        ("depth_limit", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
    )


class Work(ctypes.Structure):
    """Memory to work with; the same struct as in bin.cuh."""

    _fields_ = (
        ("splats", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
        ("scratch", Scratch),
    )


def bin_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
    room: Room | None = None,
    begun: range = range(0),
) -> Bins:
    """See `cuda_src.operators.bin_splats`. One read by the host: how many instances there are; none with a room.

    A fixed order of sums by splat is not kept: raster_backward adds with atomics.
    """
    if room is not None:
        return _in_room(kernels, splats, camera, workspace, tiles, subtiles, depth_limit, room, begun)
    device, n, listed = splats.records.device, splats.count, camera.tiles if tiles is None else tiles.shape[0]
    if n == 0 or listed == 0:
        none = workspace.take("bin.splat", (0,), torch.int32)
        starts = workspace.zeros("bin.starts", (listed + 1,), torch.int64)
        splat_starts = workspace.zeros(_SPLAT_STARTS[0], (n + 1,), _SPLAT_STARTS[1])
        return Bins(_listed_tiles(camera, tiles, workspace), starts, none, None, splat_starts)
    given, tiles, _held = _given(splats, camera, workspace, tiles, subtiles, depth_limit)
    if tiles is not None:
        places = workspace.take("bin.places", (camera.tiles,), torch.int32)
        call("list_tiles", device, tiles, count(listed), places, count(camera.tiles))
    return _binned_exactly(kernels, Given(*given), camera, workspace, tiles, listed)


def begin_bins(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
    room: Room,
    there: range,
) -> None:
    """See `cuda_src.operators.begin_bins`."""
    _in_room(kernels, splats, camera, workspace, tiles, None, depth_limit, room, there, begin=True)


def _given(
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
) -> tuple[tuple[Any, ...], torch.Tensor | None, Sequence[torch.Tensor | None]]:
    """Fields of a `Given`, the tiles where kernels read them, and what must be held until they have been launched."""
    places = None
    if tiles is not None:
        tiles = tiles.to(splats.records.device)
        places = workspace.take("bin.places", (camera.tiles,), torch.int32)
    records = aligned_records(splats.records, workspace)
    ids = None if _in_records(splats.ids, records) else splats.ids.to(torch.int64).contiguous()
    rows = splats.rows.contiguous() if splats.ids_by_row else None
    subtiles, depth_limit = None if subtiles is None else subtiles.contiguous(), as_real(depth_limit)
    given = (
        records.data_ptr(), address(ids), splats.count, address(splats.live), address(splats.overflow),
        address(places), address(subtiles), address(depth_limit), address(rows),
    )  # fmt: skip
    return given, tiles, (records, ids, subtiles, depth_limit, rows)


def _in_room(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
    room: Room,
    begun: range,
    begin: bool = False,
) -> Bins:
    """Bins of the room's size, kept for the next visit. begin: only begin to fill them; otherwise do the rest."""
    if splats.live is None or splats.count != room.splats:
        raise ValueError(f"a room for {room.splats} splats, but they are {splats.count} and were projected without it")
    given, tiles, _held = _given(splats, camera, workspace, tiles, subtiles, depth_limit)
    listed = camera.tiles if tiles is None else tiles.shape[0]
    key = "bin", view_of(kernels, camera), *given, listed, address(tiles), room.instances, begun
    bins, first, rest = workspace.kept(
        key, lambda: _prepared(kernels, Given(*given), camera, workspace, tiles, listed, room, begun)
    )
    launch = first if begin else rest
    assert launch is not None
    launch()
    return bins


def _in_records(ids: torch.Tensor, records: torch.Tensor) -> bool:
    """They are the last words of these records, as splats that ranks have sent have them."""
    begins = records.data_ptr() + layout.RECORD_ID * records.itemsize
    return ids.dtype == torch.int32 and ids.data_ptr() == begins and ids.stride() == (layout.RECORD_STRIDE,)


def _prepared(
    kernels: KernelSet,
    given: Given,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    listed: int,
    room: Room,
    begun: range,
) -> tuple[Bins, ReplayedLaunch | None, ReplayedLaunch]:
    """Bins of the room's size, what begins to fill them, if anything does, and what does the rest."""
    _check(room.instances)
    workspace.release(*_SPLAT_STARTS)  # Of a first visit, at which they were counted.
    work, memory = _work(given.splats, room.instances, listed, workspace)
    needed = workspace.take("bin.needed", (4,), torch.int64)
    starts, splat, lists = _lists(room.instances, listed, memory, workspace)
    device, places, ahead = starts.device, ctypes.c_void_p(given.places), (count(begun.start), count(len(begun)))
    of_view = ctypes.byref(view_of(kernels, camera)), ctypes.byref(given), ctypes.byref(work)
    begin = None
    if begun:
        begin = ReplayedLaunch(
            "begin_bins", device, *of_view, *ahead, tiles, count(listed), places, count(camera.tiles)
        )  # fmt: skip
    rest = ReplayedLaunch(
        "bin_view", device, *of_view, *lists, needed, tiles, places, count(camera.tiles), *ahead
    )  # fmt: skip
    return Bins(_listed_tiles(camera, tiles, workspace), starts, splat, None, None, needed), begin, rest


def _binned_exactly(
    kernels: KernelSet, given: Given, camera: Camera, workspace: Workspace, tiles: torch.Tensor | None, listed: int
) -> Bins:
    """The instances are counted, and lists made of their number."""
    n = given.splats
    splat_starts = workspace.take(_SPLAT_STARTS[0], (n + 1,), _SPLAT_STARTS[1])
    device, view, none = splat_starts.device, ctypes.byref(view_of(kernels, camera)), (count(0), count(0))

    def counted(work: Work) -> int:
        """Finds each splat's tiles; returns how many instances there are."""
        call(
            "count_instances", device, view, ctypes.byref(given), ctypes.byref(work), *none, count(listed), splat_starts
        )
        return int(workspace.take("bin.counts", _counts_of(listed), torch.int64)[0])

    # Memory for as many instances as splats, for a start: raster_forward will want no less.
    work, _ = _work(n, n, listed, workspace)
    instances = counted(work)
    _check(instances)
    held = lent_bytes(workspace)
    work, memory = _work(n, instances, listed, workspace)
    if lent_bytes(workspace) != held:  # Room for the instances was not there: what has been found is lost.
        counted(work)
    starts, splat, lists = _lists(instances, listed, memory, workspace)
    call("list_bins", device, view, ctypes.byref(given), ctypes.byref(work), *lists, None)
    return Bins(_listed_tiles(camera, tiles, workspace), starts, splat, None, splat_starts)


def _listed_tiles(camera: Camera, tiles: torch.Tensor | None, workspace: Workspace) -> torch.Tensor:
    return workspace.numbers(camera.tiles) if tiles is None else tiles


def _counts_of(listed: int) -> tuple[int]:
    """Shape of Work.counts, with an int32 for each listed tile."""
    return (_COUNTS + -(-listed // 2),)


def _work(splats: int, instances: int, listed: int, workspace: Workspace) -> tuple[Work, ctypes.c_void_p]:
    """Memory for so many splats, and that for so many instances to be sorted in. Both are lent."""
    pitch, scratch = _pitch(splats), scratch_bytes(splats, workspace.device)
    most_long = instances // _SORTED
    buckets = _BUCKET_WORDS * (instances // _BUCKET + most_long) + (_LONG_LIST_WORDS + _SHARE_WORDS) * most_long
    sorted_in = _INSTANCE_PLANES * _pitch(instances) + buckets
    word = ctypes.sizeof(ctypes.c_int32)
    planes, lists, summing = lent(workspace, _SPLAT_PLANES * pitch * word, sorted_in * word, scratch)
    counts = workspace.take("bin.counts", _counts_of(listed), torch.int64)
    work = Work(planes.data_ptr(), pitch, address(counts), Scratch(summing.data_ptr(), scratch))
    return work, ctypes.c_void_p(lists.data_ptr())


def _lists(
    instances: int, listed: int, memory: ctypes.c_void_p, workspace: Workspace
) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """starts and splat of Bins, and the arguments by which `list_bins` is given them and memory to sort in."""
    starts = workspace.take("bin.starts", (listed + 1,), torch.int64)
    splat = workspace.take("bin.splat", (instances,), torch.int32)
    pitch = count(_pitch(instances))
    return starts, splat, (count(instances), count(listed), memory, pitch, splat, starts)


def _check(instances: int) -> None:
    if instances >= _MOST_INSTANCES:
        raise RuntimeError(f"{instances} tile instances in one view; expected fewer than {_MOST_INSTANCES}")


def _pitch(items: int) -> int:
    return -(-items // _PITCH) * _PITCH
