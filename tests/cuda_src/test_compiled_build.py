"""Building the compiled kernels: what nvcc makes of them, the cache, and the reasons why there are none.

With nvcc these tests run without a GPU; the one real build is shared by all of them.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cuda_src import layout
from cuda_src.camera import TILE
from cuda_src.compiled import build as building
from cuda_src.compiled.bindings import call, library
from cuda_src.compiled.build import Build, BuildError, build, content_key, generated_header, source_files
from cuda_src.compiled.resources import kernel_resources, recorded, taken
from cuda_src.compiled.view import View
from cuda_src.nvcc import find_nvcc
from harness.cli import app

FLOAT64_ALLOWED: dict[str, str] = {}
"""Source files whose PTX may hold float64, with the reason."""

OTHER_COMPILER = 1.25
"""How much more another version of nvcc may take than the one that resources.json was written with."""

VERSION_LINE = "Build cuda_0.0.r0.0/compiler.1_0"


@pytest.fixture(scope="session")
def built() -> Build:
    if find_nvcc() is None:
        pytest.skip("needs nvcc; none in CUDA_HOME, on the PATH or among NVIDIA's wheels")
    return build()


def test_the_library_is_built_with_machine_code_and_ptx(built):
    assert built.library.stat().st_size > 0
    assert set(built.ptx) == {file.stem for file in source_files() if file.suffix == ".cu"}
    for name in ("project", "bin", "raster_forward", "raster_backward", "loss", "project_backward", "adam"):
        assert ".visible .entry" in built.ptx[name], name


def test_no_kernel_computes_in_float64(built):
    for name, ptx in built.ptx.items():
        found = {line.strip() for line in ptx.splitlines() if re.search(r"\.f64\b", line)}
        assert not found or name in FLOAT64_ALLOWED, f"{name}: {sorted(found)[:3]}"


def test_no_kernel_takes_more_registers_or_memory_than_recorded(built):
    nvcc = find_nvcc()
    assert nvcc is not None
    now, noted = taken(built), recorded()
    assert sorted(now) == sorted(noted["kernels"]), "run python -m cuda_src.compiled.resources"
    if building.architecture() != noted["architecture"]:
        pytest.skip(f"recorded for architecture {noted['architecture']}")
    room = 1.0 if building.compiler_version(nvcc) == noted["compiler"] else OTHER_COMPILER
    for kernel, resources in now.items():
        for name, value in resources.items():
            assert value <= noted["kernels"][kernel][name] * room, f"{kernel}: {name}"


def test_no_recorded_kernel_spills():
    assert {kernel for kernel, r in recorded()["kernels"].items() if r["spills"]} == set()


@pytest.mark.parametrize(("kernel", "warps"), [("true, true", 10), ("false, true", 8), ("false, false", 8)])
def test_a_move_leaves_registers_for_a_warp_by_which_ranks_signal(kernel, warps):
    """A multiprocessor gives each quarter of its warps 16,384 registers; its blocks stay as long as the move takes."""
    each = -(-recorded()["kernels"][f"move_groups<{kernel}>"]["registers"] // 8) * 8
    assert 16_384 - warps // 4 * 32 * each >= 32 * 48


def test_shared_memory_that_launches_ask_for_is_counted_too(built):
    """Of every kernel that takes some: a launch with memory that no DYNAMIC_SHARED tells of would go unnoticed."""
    kernel = re.compile(r"__global__ void\s+__launch_bounds__\([^{]*?\)\s+(\w+)\(")
    parts = [file.read_text().split("extern __shared__")[:-1] for file in source_files()]
    asking = {kernel.findall(part)[-1] for of_file in parts for part in of_file}
    static, now = kernel_resources(built.resources), taken(built)
    assert {name.split("<")[0] for name in now if now[name]["shared"] > static[name]["shared"]} == asking
    assert "uncomposite" in asking


def test_the_generated_header_has_every_field_of_the_view_and_the_layouts_columns():
    header = generated_header()
    for name, *_ in View._fields_:
        assert re.search(rf"\b{name}(\[\d+\])?;", header), name
    for name, value in (
        ("TILE", TILE),
        ("PARAMETERS", layout.PARAMETERS),
        ("QUATERNION", layout.QUATERNION.start),
        ("RECORD_DEPTH", layout.RECORD_DEPTH),
        ("GRADIENT", layout.GRADIENT),
    ):
        assert f"constexpr int {name} = {value};" in header


def test_resources_are_read_from_what_ptxas_prints():
    text = (
        "ptxas info    : Compiling entry function '_Z7measureILb1EEv5ScenePf' for 'sm_90'\n"
        "ptxas info    : Function properties for _Z7measureILb1EEv5ScenePf\n"
        "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 63 registers, used 1 barriers, 17504 bytes smem\n"
        "ptxas info    : Compiling entry function '_ZN3cub4scanEv' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 9 registers, used 0 barriers\n"
    )
    taken = {"registers": 63, "shared": 17504, "stack": 16, "spills": 12}
    assert kernel_resources(text) == {"measure<true>": taken}
    assert kernel_resources(text.replace("_Z7measureILb1EE", "_Z7measureILb1ELb0EE")) == {"measure<true, false>": taken}


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvcc that writes a library in no time and notes each build; the cache is empty."""
    folder = tmp_path / "toolkit" / "bin"
    folder.mkdir(parents=True)
    script = folder / "nvcc"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "{VERSION_LINE}"; exit 0; fi\n'
        f'echo "$@" >> "{tmp_path}/builds"\n'
        f'if [ -e "{tmp_path}/broken" ]; then echo "kernels.cu(7): error: no such thing" >&2; exit 2; fi\n'
        'for word in "$@"; do case "$word" in -o=*) echo library > "${word#-o=}";; esac; done\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("SPLAT_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def builds(compiler: Path) -> list[str]:
    return (compiler / "builds").read_text().splitlines() if (compiler / "builds").exists() else []


def test_a_second_build_of_the_same_content_compiles_nothing(compiler):
    first, second = build(), build()
    assert first == second
    assert first.library.read_text() == "library\n"
    assert len(builds(compiler)) == 1


@pytest.mark.parametrize("change", ["source", "architecture", "compiler"])
def test_whatever_changes_the_library_gives_it_another_key(tmp_path, change):
    file = tmp_path / "kernel.cu"
    file.write_text("one")
    before = content_key([file], "90", VERSION_LINE)
    assert content_key([file], "90", VERSION_LINE) == before
    if change == "source":
        file.write_text("two")
    arch = "80" if change == "architecture" else "90"
    compiler_line = "another" if change == "compiler" else VERSION_LINE
    assert content_key([file], arch, compiler_line) != before


def test_another_architecture_is_another_build(compiler, monkeypatch):
    first = build()
    monkeypatch.setenv(building.ARCHITECTURE_VARIABLE, "80")
    assert build() != first
    assert "compute_80" in builds(compiler)[1]


def test_a_failed_build_leaves_nothing_and_says_what_the_compiler_said(compiler):
    (compiler / "broken").touch()
    with pytest.raises(BuildError, match="no such thing"):
        build()
    assert [file.suffix for file in (compiler / "cache" / "compiled").iterdir()] == [".lock"]
    (compiler / "broken").unlink()
    assert build().library.exists()


def test_without_a_compiler_the_reason_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "find_nvcc", lambda: None)
    with pytest.raises(BuildError, match=r"need nvcc; none in CUDA_HOME, on the PATH or among NVIDIA's wheels$"):
        build()


def test_without_a_gpu_an_operator_says_that_it_needs_one():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BuildError, match="need a GPU"):
        library()


def test_tensors_of_the_cpu_are_refused_by_name():
    with pytest.raises(ValueError, match="work on CUDA tensors, not on cpu"):
        call("adam_rows", torch.device("cpu"))


def test_the_command_prints_the_librarys_path_and_the_reason_where_there_is_none(compiler, monkeypatch):
    done = CliRunner().invoke(app, ["build", "--arch", "80"])
    assert done.exit_code == 0
    assert Path(done.output.strip()).read_text() == "library\n"
    monkeypatch.setattr(building, "find_nvcc", lambda: None)
    failed = CliRunner().invoke(app, ["build"])
    assert failed.exit_code == 2
    assert "need nvcc" in failed.output


def test_the_compiler_is_found_among_nvidias_wheels(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delitem(__import__("sys").modules, "nvidia", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_nvcc() == nvcc


def test_sources_are_part_of_the_package():
    assert {"config.h", "project.cu", "sums.cu", "footprint.cuh"} <= {file.name for file in source_files()}
    assert all(os.access(file, os.R_OK) for file in source_files())
