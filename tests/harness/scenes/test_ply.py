"""Gaussian PLY in and out, and PLY point clouds; plyfile is the independent reader and writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plyfile import PlyData, PlyElement

from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_DC, SH_REST
from harness.errors import UserError
from harness.scenes import ply
from harness.scenes.ply import read_gaussians, read_points, write_gaussians
from strategies.base import Shard

CPU = torch.device("cpu")


def shard(parameters: torch.Tensor) -> Shard:
    zeros = torch.zeros_like(parameters)
    return Shard(torch.arange(len(parameters)), parameters, zeros, zeros)


def gaussians(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, PARAMETERS, generator=torch.Generator().manual_seed(seed))


def write(path: Path, parameters: torch.Tensor) -> Path:
    write_gaussians(path, iter([shard(parameters)]), len(parameters))
    return path


def written_by_plyfile(path: Path, rest: int, count: int = 3, leave_out: str = "", **options: object) -> np.ndarray:
    names = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", *(f"f_rest_{i}" for i in range(rest)), "opacity"]
    names += [*(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    names = [name for name in names if name != leave_out]
    table = np.zeros(count, dtype=[(name, "f4") for name in names])
    for column, name in enumerate(names):
        table[name] = np.arange(count) + column / 100
    PlyData([PlyElement.describe(table, "vertex")], **options).write(path)
    return table


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, 2**31),
    piece=st.integers(1, 4),
)
def test_gaussians_read_back_bit_for_bit(tmp_path: Path, sizes: list[int], seed: int, piece: int) -> None:
    parts = [gaussians(n, seed + i) for i, n in enumerate(sizes)]
    whole = torch.cat(parts)
    path = tmp_path / "model.ply"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ply, "PIECE", piece)
        write_gaussians(path, (shard(p) for p in parts), len(whole))
        source = read_gaussians(path)
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(source.read(order, CPU), whole[order])
    assert source.count == len(whole)
    assert torch.equal(source.positions(0, len(whole)), whole[:, MEAN])
    np.testing.assert_array_equal(source.bounds, torch.stack([whole[:, :3].amin(0), whole[:, :3].amax(0)]).numpy())


def test_written_file_has_the_properties_that_viewers_read(tmp_path: Path) -> None:
    parameters = gaussians(4)
    vertex = PlyData.read(write(tmp_path / "model.ply", parameters))["vertex"]
    names = [p.name for p in vertex.properties]
    assert names[:9] == ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    assert names[9:54] == [f"f_rest_{i}" for i in range(45)]
    assert names[54:] == ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    np.testing.assert_array_equal(vertex["opacity"], parameters[:, OPACITY_LOGIT])
    np.testing.assert_array_equal(vertex["scale_2"], parameters[:, LOG_SCALE][:, 2])
    np.testing.assert_array_equal(vertex["rot_0"], parameters[:, QUATERNION][:, 0])
    np.testing.assert_array_equal(vertex["f_dc_1"], parameters[:, SH_DC][:, 1])
    # Colour 2 of coefficient 5 (the fourth of the rest, from 0): colour-major there, coefficient-major here.
    np.testing.assert_array_equal(vertex["f_rest_34"], parameters[:, SH_REST].reshape(4, 15, 3)[:, 4, 2])
    assert list(tmp_path.iterdir()) == [tmp_path / "model.ply"]


@pytest.mark.parametrize("rest", [0, 9, 24, 45])
@pytest.mark.parametrize("options", [{"byte_order": "<"}, {"byte_order": ">"}, {"text": True}])
def test_lower_degrees_are_filled_up_with_zeros_in_every_format(
    tmp_path: Path, rest: int, options: dict[str, object]
) -> None:
    table = written_by_plyfile(tmp_path / "model.ply", rest, **options)
    read = read_gaussians(tmp_path / "model.ply").read(torch.arange(3), CPU).numpy()
    coefficients = read[:, SH_REST].reshape(3, 15, 3)
    per_colour = rest // 3
    for colour in range(3):
        for k in range(per_colour):
            np.testing.assert_allclose(coefficients[:, k, colour], table[f"f_rest_{colour * per_colour + k}"])
    assert not coefficients[:, per_colour:].any()
    np.testing.assert_allclose(read[:, QUATERNION.start + 3], table["rot_3"])


@pytest.mark.parametrize("missing", ["x", "f_dc_2", "opacity", "scale_0", "rot_3"])
def test_missing_properties_are_named(tmp_path: Path, missing: str) -> None:
    written_by_plyfile(tmp_path / "model.ply", 0, leave_out=missing)
    with pytest.raises(UserError, match=f"model.ply: vertex has no property {missing}"):
        read_gaussians(tmp_path / "model.ply")


@pytest.mark.parametrize("rest", [3, 44, 48])
def test_other_numbers_of_harmonics_are_refused(tmp_path: Path, rest: int) -> None:
    written_by_plyfile(tmp_path / "model.ply", rest)
    with pytest.raises(UserError, match=f"has {rest} f_rest properties"):
        read_gaussians(tmp_path / "model.ply")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_naming_the_gaussian(tmp_path: Path, value: float) -> None:
    parameters = gaussians(5)
    parameters[3, SH_REST.start] = value
    path = write(tmp_path / "model.ply", parameters)
    with pytest.raises(UserError, match="Gaussian 4 holds a number that is not finite"):
        read_gaussians(path)


@pytest.mark.parametrize("change", [-1, -240, 1])
def test_body_must_have_the_announced_length(tmp_path: Path, change: int) -> None:
    path = write(tmp_path / "model.ply", gaussians(3))
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(UserError, match="bytes follow the header; expected 3 vertices of 248 bytes, 744 in all"):
        read_gaussians(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no PLY file"),
        (b"plx\n", "no PLY file"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\n", "no end_header"),
        (b"ply\nformat ascii 2.0\nend_header\n", "model.ply:2: unexpected header line"),
        (b"ply\nformat ascii 1.0\nelement face 1\nproperty list uchar int i\nend_header\n", "first element is 'face'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar int x\nend_header\n", "unexpected header line"),
        (b"ply\nformat ascii 1.0\nelement vertex -1\nproperty float x\nend_header\n", "unexpected header line"),
        (b"ply\nformat ascii 1.0\nend_header\n", "expected a format, an element vertex"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float x\nend_header\n", "each once"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.ply").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_gaussians(tmp_path / "model.ply")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.ply", tmp_path):
        with pytest.raises(UserError, match="PLY file is missing"):
            read_gaussians(path)


def test_file_without_gaussians_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no Gaussian"):
        read_gaussians(write(tmp_path / "model.ply", gaussians(0)))


def test_wrong_count_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "model.ply", gaussians(2))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="3 Gaussians in the shards; 4 announced"):
        write_gaussians(path, iter([shard(gaussians(3))]), 4)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", ["binary_little_endian", "ascii"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_end_in_a_user_error_or_are_read(tmp_path: Path, form: str, data: st.DataObject) -> None:
    path = tmp_path / "model.ply"
    written_by_plyfile(path, 9, text=form == "ascii")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    try:
        read = read_gaussians(path).read(torch.arange(1), CPU)
    except UserError as error:
        message = str(error)
    else:
        message = str(path)
        assert torch.isfinite(read).all()
    assert str(path) in message


CLOUD = (
    "ply\nformat ascii 1.0\ncomment by hand\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n"
)
COLOURS = "property {0} red\nproperty {0} green\nproperty {0} blue\n"


def test_point_clouds_with_colours_and_faces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cloud.ply"
    faces = "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    path.write_text(CLOUD.format(2) + COLOURS.format("uchar") + faces + "1 2 3 4 5 6\n-1 0 1e1 0 255 7\n3 0 1 0\n")
    positions, colours = read_points(path)
    np.testing.assert_array_equal(positions, [[1, 2, 3], [-1, 0, 10]])
    np.testing.assert_array_equal(colours, [[4, 5, 6], [0, 255, 7]])


def test_point_clouds_without_colours_are_grey(tmp_path: Path) -> None:
    (tmp_path / "cloud.ply").write_text(CLOUD.format(1) + "end_header\n1 2 3\n")
    _, colours = read_points(tmp_path / "cloud.ply")
    np.testing.assert_array_equal(colours, [[128, 128, 128]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLOUD.format(2) + "end_header\n1 2 3\n", "cut short"),
        (CLOUD.format(2) + "end_header\n1.000 2.000 3.000\n", "body has 1 lines of vertices; expected 2"),
        (CLOUD.format(10**14) + "end_header\n1 2 3\n", "announces 100000000000000 vertices"),
        (CLOUD.format(1) + "end_header\n1 two 3\n", "body: "),
        (CLOUD.format(1) + COLOURS.format("float") + "end_header\n1 2 3 0.1 0.2 0.3\n", "colours are no uchar"),
        (CLOUD.format(1) + COLOURS.format("uchar") + "end_header\n1 2 3 0 1 256\n", "body: "),
    ],
)
def test_damaged_point_clouds_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cloud.ply").write_text(text)
    with pytest.raises(UserError, match=message):
        read_points(tmp_path / "cloud.ply")
