"""Every mistake a user can make, through the command line: one sentence, exit code 2, nothing written, no traceback."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from plyfile import PlyData, PlyElement
from typer.testing import CliRunner

from harness import cli
from harness.runner import scene_check
from harness.scenes import check

SIZE = (40, 30)
CAMERAS = "1 PINHOLE 40 30 35 36 20 15\n"
IMAGES = "1 1 0 0 0 0 0 2 1 a.png\n20 15 7\n2 0.8 0 0.6 0 1 0 3 1 b.png\n\n"
POINTS = "7 0 0 0 10 20 30 0.5 1 0\n9 1 -2 0.5 255 0 1 0.5\n"
POSE = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1]]
PROPERTIES = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{i}" for i in range(3))]
PROPERTIES += [f"rot_{i}" for i in range(4)]
HEADER = b"ply\nformat binary_little_endian 1.0\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with photographs and a good model of them; scenes are looked at in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scene/images").mkdir(parents=True)
    for name, seed in (("a.png", 0), ("b.png", 1)):
        pixels = np.random.default_rng(seed).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "scene/images" / name)

    def in_this_process(command: list[str], input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "harness.scenes.check"]
        with redirect_stdout(StringIO()) as printed:
            code = check.main(input)
        return subprocess.CompletedProcess(command, code, printed.getvalue(), "")

    monkeypatch.setattr(scene_check, "subprocess", SimpleNamespace(run=in_this_process))
    return tmp_path


def refused(words: list[str], *expected: str) -> None:
    """The command ends with code 2 and one sentence that begins with the first text and holds the others."""
    here = Path.cwd()
    before = {path: path.stat().st_mtime_ns for path in [here, *here.rglob("*")]}
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    sentence = result.stderr.removesuffix("\n")
    assert "\n" not in sentence
    assert sentence.startswith(f"error: {expected[0]}"), sentence
    for text in expected[1:]:
        assert text in sentence
    assert {path: path.stat().st_mtime_ns for path in [here, *here.rglob("*")]} == before, "nothing is written"


def refused_suite(text: str, *expected: str, file: str = "s.yaml") -> None:
    Path(file).write_text(text)
    refused(["run", file, "--out", "out"], *expected)


SUITES = {
    "unknown key": (
        "suite: 1\ndefaults:\n  rank: 2\n",
        "s.yaml:3: defaults.rank: unknown key; did you mean 'ranks'?",
    ),
    "option of another strategy": (
        "suite: 1\ndefaults:\n  options: {min_opacity: 0.1}\n",
        "s.yaml:3: options.min_opacity: strategy 'single' has no such option; 'grendel'",
    ),
    "wrong type": (
        "suite: 1\ndefaults:\n  images: many\n",
        "s.yaml:3: defaults.images: value 'many'; expected an integer",
    ),
    "wrong value": (
        "suite: 1\naxes:\n  ranks: [1, 0]\n",
        "s.yaml:3: axes.ranks: value 0; expected at least 1",
    ),
    "duplicate key": (
        "suite: 1\ndefaults:\n  batch: 1\n  batch: 2\n",
        "s.yaml:4: batch: given twice, first on line 3; expected once",
    ),
    "no YAML": ("suite: 1\naxes: [\n", "s.yaml:3: not valid YAML: "),
    "a matrix with an empty axis": ("suite: 1\naxes:\n  ranks: []\n", "s.yaml:3: axes.ranks: value []; expected at "),
    "a matrix without cells": (
        "suite: 1\nexclude: [{ranks: 1}]\n",
        "s.yaml:1: every cell is excluded; expected at least one cell",
    ),
    "a name out of the results": (
        "suite: 1\nname: ../../elsewhere\n",
        "s.yaml:2: name: value '../../elsewhere'; expected letters, digits, '.', '_' and '-' (it names a folder)",
    ),
    "an object": (
        "suite: 1\ndescription: !!python/object/apply:os.system [touch owned]\n",
        "s.yaml:2: ",
        "python/object",
    ),
    "an alias": ("suite: 1\ndefaults: &a {batch: *a}\n", "s.yaml:2: anchors and aliases are not supported"),
    "a missing scene": (
        "suite: 1\ndefaults:\n  scene: nowhere\n",
        "s.yaml:3: scene.path: value 'nowhere'; expected a folder or transforms.json that exists",
    ),
    "a missing model": (
        "suite: 1\ndefaults:\n  scene: {path: scene, model: no.ply}\n",
        "s.yaml:3: scene.model: value 'no.ply'; expected a PLY file that exists",
    ),
    "one view of a city": (
        "suite: 1\ndefaults:\n  scene: {city: small_street, views: 1}\n",
        "s.yaml:3: defaults.scene.views: value 1; expected at least 2",
    ),
}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("mistake", SUITES)
def test_a_mistake_in_a_suite_is_refused(mistake: str) -> None:
    refused_suite(*SUITES[mistake])


@pytest.mark.usefixtures("project")
def test_a_file_whose_name_leads_out_of_the_results_is_refused() -> None:
    refused_suite(
        "suite: 1\n", "...yaml:1: name: missing, and '..' of the file can name no folder; expected", file="...yaml"
    )


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "no.yaml"], "no.yaml: no such file; expected a suite in YAML"),
        (["run", "s.yaml", "--set", "rank=2"], "--set rank=2: rank: unknown key; did you mean 'ranks'?"),
        (["run", "s.yaml", "--only", "ranks=9"], "--only ranks=9: ranks: matches none of 1 cells, which have 1"),
        (["run", "s.yaml", "--out", "s.yaml"], "s.yaml: is a file; expected a folder for the records"),
        (["run", "s.yaml", "--out", "s.yaml/out"], "s.yaml/out: cannot be written (Not a directory); expected a "),
    ],
)
def test_a_mistake_on_the_command_line_is_refused(words: list[str], expected: str) -> None:
    Path("s.yaml").write_text("suite: 1\n")
    refused(words, expected)


def colmap(cameras: str = CAMERAS, images: str = IMAGES, points: str = POINTS) -> Callable[[Path], None]:
    def write(scene: Path) -> None:
        model = scene / "sparse/0"
        model.mkdir(parents=True)
        for name, text in (("cameras", cameras), ("images", images), ("points3D", points)):
            (model / f"{name}.txt").write_text(text)

    return write


def binary(cameras: bytes) -> Callable[[Path], None]:
    def write(scene: Path) -> None:
        model = scene / "sparse/0"
        model.mkdir(parents=True)
        for name, data in (("cameras", cameras), ("images", bytes(8)), ("points3D", bytes(8))):
            (model / f"{name}.bin").write_bytes(data)

    return write


def image(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def write(scene: Path) -> None:
        colmap()(scene)
        change(scene / "images/b.png")

    return write


def transforms(**second: object) -> Callable[[Path], None]:
    """Two frames; the second has these values too, or lacks those that are None."""

    def write(scene: Path) -> None:
        frame = {"file_path": "images/b.png", "transform_matrix": POSE, **second}
        frames = [
            {"file_path": "images/a.png", "transform_matrix": POSE},
            {key: value for key, value in frame.items() if value is not None},
        ]
        (scene / "transforms.json").write_text(json.dumps({"fl_x": 35.0, "frames": frames}))

    return write


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def one_camera() -> bytes:
    return struct.pack("<QIiQQ4d", 1, 1, 1, *SIZE, 35.0, 36.0, 20.0, 15.0)


SCENES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "an empty folder": (lambda scene: None, ("scene: holds no scene; expected sparse/0/cameras.bin or .txt",)),
    "an empty model": (
        lambda scene: (scene / "sparse/0").mkdir(parents=True),
        ("scene: holds no scene; expected sparse/0/cameras.bin or .txt",),
    ),
    "a missing file of the model": (
        lambda scene: (colmap()(scene), (scene / "sparse/0/images.txt").unlink()),
        ("scene/sparse/0/images.txt: COLMAP file is missing; expected cameras.txt, images.txt, points3D.txt",),
    ),
    "a truncated text model": (
        colmap(images=IMAGES[: IMAGES.index("1 0 3")]),
        ("scene/sparse/0/images.txt:3: 5 fields; expected IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME",),
    ),
    "a truncated binary model": (
        binary(one_camera()[:-4]),
        ("scene/sparse/0/cameras.bin: ", "within camera 1: cut short, or no COLMAP file"),
    ),
    "a count beyond the file": (
        binary(struct.pack("<Q", 2**60)),
        ("scene/sparse/0/cameras.bin: announces 1152921504606846976 cameras", "only 0 are left"),
    ),
    "an inconsistent model": (
        colmap(images=IMAGES.replace("3 1 b.png", "3 5 b.png")),
        ("scene/sparse/0/images.txt: image 'b.png' has the unknown camera 5; known: 1",),
    ),
    "an unknown camera model": (
        colmap(cameras=CAMERAS.replace("PINHOLE", "MAGIC")),
        ("scene/sparse/0/cameras.txt:1: ", "MAGIC", "expected one of"),
    ),
    "an unknown camera number": (
        binary(struct.pack("<QIiQQ", 1, 1, 99, *SIZE)),
        ("scene/sparse/0/cameras.bin: camera 1: unknown camera model 99; expected one of 0 (SIMPLE_PINHOLE)",),
    ),
    "a focal length that is no number": (
        colmap(cameras=CAMERAS.replace("35 36", "nan 36")),
        ("scene/sparse/0/cameras.txt:1: ", "nan", "expected a finite number"),
    ),
    "a zero quaternion": (
        colmap(images=IMAGES.replace("0.8 0 0.6 0", "0 0 0 0")),
        ("scene/sparse/0/images.txt:3: the quaternion is zero; expected w x y z of a rotation",),
    ),
    "a keypoint of an unknown point": (
        colmap(images=IMAGES.replace("20 15 7", "20 15 8")),
        ("scene/sparse/0/images.txt: image 'a.png' has a keypoint of point 8, which points3D.txt lacks",),
    ),
    "an image outside the scene": (
        colmap(images=IMAGES.replace("b.png", "../../b.png")),
        ("scene/sparse/0: path '../../b.png'; expected one inside the scene's folder",),
    ),
    "no held-out view": (
        colmap(images=IMAGES[: IMAGES.index("2 0.8")]),
        ("scene: scene has 1 photograph; expected at least 2, since one is held out",),
    ),
    "a missing image": (image(Path.unlink), ("scene/images/b.png: image is missing",)),
    "an empty image": (
        image(lambda path: path.write_bytes(b"")),
        ("scene/images/b.png: image file is empty (0 bytes)",),
    ),
    "a truncated image": (image(cut), ("scene/images/b.png: cannot be decoded (",)),
    "an image of another size": (
        image(lambda path: Image.new("RGB", (41, 30)).save(path)),
        ("scene/images/b.png: is 41x30 pixels; its camera expects 40x30",),
    ),
    "no image": (
        image(lambda path: path.write_text("<html>")),
        ("scene/images/b.png: cannot be read as an image (",),
    ),
    "a singular matrix": (
        transforms(transform_matrix=[[0] * 4] * 3 + [[0, 0, 0, 1]]),
        ("scene/transforms.json: frame 2: transform_matrix: a column of the rotation is zero",),
    ),
    "a missing matrix": (
        transforms(transform_matrix=None),
        ("scene/transforms.json: frame 2: no pose; expected transform_matrix or rot_mat",),
    ),
    "a matrix that is no number": (
        transforms(transform_matrix=[[float("nan")] * 4] * 4),
        ("scene/transforms.json: frame 2: transform_matrix: expected 4 x 4 finite numbers",),
    ),
    "an infinite focal length": (
        transforms(fl_x=float("inf")),
        ("scene/transforms.json: frame 2: fl_x is inf; expected a finite number",),
    ),
    "no JSON": (
        lambda scene: (scene / "transforms.json").write_text('{"frames": [\n'),
        ("scene/transforms.json:2: no JSON: ",),
    ),
}


@pytest.mark.parametrize("mistake", SCENES)
def test_a_mistake_in_a_scene_is_refused_before_anything_runs(project: Path, mistake: str) -> None:
    write, expected = SCENES[mistake]
    write(project / "scene")
    refused_suite("suite: 1\ndefaults: {scene: scene}\n", *expected)


def gaussians(value: float = 0.5, leave_out: str = "") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        names = [name for name in PROPERTIES if name != leave_out]
        table = np.full(3, 0.5, dtype=[(name, "f4") for name in names])
        table["y"][1] = value
        PlyData([PlyElement.describe(table, "vertex")]).write(path)

    return write


MODELS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "missing properties": (
        gaussians(leave_out="opacity"),
        ("model.ply: vertex has no property opacity; expected x, y, z",),
    ),
    "NaN": (gaussians(float("nan")), ("model.ply: Gaussian 2 holds a number that is not finite",)),
    "Inf": (gaussians(float("inf")), ("model.ply: Gaussian 2 holds a number that is not finite",)),
    "a truncated body": (
        lambda path: (gaussians()(path), path.write_bytes(path.read_bytes()[:-10])),
        ("model.ply: 158 bytes follow the header; expected 3 vertices of 56 bytes, 168 in all",),
    ),
    "a header without end": (
        lambda path: path.write_bytes(HEADER),
        ("model.ply: has no end_header line",),
    ),
    "an unknown header line": (
        lambda path: path.write_bytes(HEADER + b"element vertex many\nend_header\n"),
        ("model.ply:3: unexpected header line 'element vertex many'",),
    ),
    "another file": (lambda path: path.write_bytes(b"\x80\x04pickle"), ("model.ply: is no PLY file; expected it to",)),
}


@pytest.mark.parametrize("mistake", MODELS)
@pytest.mark.parametrize(
    "scene", ["{city: small_street, views: 8, model: model.ply}", "{path: scene, model: model.ply}"]
)
def test_a_mistake_in_a_model_is_refused_before_anything_runs(project: Path, mistake: str, scene: str) -> None:
    colmap()(project / "scene")
    write, expected = MODELS[mistake]
    write(project / "model.ply")
    refused_suite(f"suite: 1\ndefaults: {{scene: {scene}}}\n", *expected)


def test_scenes_are_looked_at_once_each_by_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scene").mkdir()
    refused_suite("suite: 1\ndefaults: {scene: scene}\naxes: {batch: [1, 2]}\n", "scene: holds no scene; expected ")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("project")
def test_a_good_scene_and_model_pass(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colmap()(project / "scene")
    gaussians()(project / "model.ply")
    suite = project / "s.yaml"
    suite.write_text("suite: 1\ndefaults: {scene: {path: scene, model: model.ply}}\n")
    reached: list[object] = []
    monkeypatch.setattr("harness.runner.run.run_suite", lambda *words, **_: reached.append(words) or _stop())
    assert CliRunner().invoke(cli.app, ["run", str(suite), "--out", "out"]).exit_code == 130
    assert reached


def _stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("project")
def test_names_of_cells_never_become_paths() -> None:
    name = "../../<b>x"
    Path("s.yaml").write_text(f"suite: 1\ncases: [{{name: '{name}'}}]\nprepare: {{../p: {{}}}}\n")
    cells = json.loads(CliRunner().invoke(cli.app, ["plan", "s.yaml", "--json"]).stdout)["cells"]
    assert [cell["cell"]["name"] for cell in cells] == [name]
    assert all(re.fullmatch("[0-9a-f]{12}", cell["cell_id"]) for cell in cells)
