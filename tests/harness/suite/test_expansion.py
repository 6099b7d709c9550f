"""From a suite to its cells: axes, cases, ladders, exclusions, devices, overrides and filters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.suite.cell import Cell
from harness.suite.expansion import expand
from harness.suite.grammar import understand
from harness.suite.machine import Machine
from harness.suite.plan import plan
from harness.suite.yaml_source import parse, yaml_text

SuiteFile = Callable[[str], Path]
TWO_GPUS = Machine(gpus=2, cpus=8, compiled=True, nvcc=True)


@pytest.fixture
def cells(suite_file: SuiteFile, laptop: Machine) -> Callable[..., list[Cell]]:
    def of(text: str, *overrides: str, only: tuple[str, ...] = (), machine: Machine = laptop) -> list[Cell]:
        return [
            planned.cell for planned in plan(suite_file("suite: 1\n" + text), overrides, only, machine=machine).cells
        ]

    return of


Cells = Callable[..., list[Cell]]


def test_axes_are_a_product_whose_first_axis_varies_slowest(cells: Cells) -> None:
    found = cells("axes: {batch: [1, 2], ranks: [1, 2, 4]}\n")
    assert [(c.batch, c.ranks) for c in found] == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ranks", "batch", "seed", "threads", "images"]),
        st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
        min_size=1,
    )
)
def test_a_product_has_every_combination_once(axes: dict[str, list[int]]) -> None:
    suite = understand(parse("axes: " + yaml_text(axes), "s.yaml"), Path("s.yaml"))
    points = [tuple(point.settings[key] for key in axes) for point in expand(suite)]
    expected = 1
    for values in axes.values():
        expected *= len(values)
    assert len(points) == len(set(points)) == expected


def test_a_suite_of_defaults_alone_is_one_cell(cells: Cells) -> None:
    assert [c.batch for c in cells("defaults: {batch: 3}\n")] == [3]


def test_the_suites_name_is_its_files_stem_unless_given(cells: Cells) -> None:
    assert cells("")[0].suite == "s"
    assert cells("name: other\n")[0].suite == "other"


def test_several_products_follow_one_another_and_share_cells(cells: Cells) -> None:
    found = cells("axes:\n  - {batch: [1, 2], repeats: [2]}\n  - {ranks: [1, 2], seed: [0]}\n")
    assert [(c.batch, c.ranks, c.repeats) for c in found] == [(1, 1, 2), (2, 1, 2), (1, 2, 3)]


def test_a_list_overrides_the_axis_of_every_product_that_has_it(cells: Cells) -> None:
    found = cells("axes:\n  - {batch: [1, 2]}\n  - {ranks: [2], batch: [4]}\n", "batch=[3]")
    assert [(c.batch, c.ranks) for c in found] == [(3, 1), (3, 2)]


def test_dotted_axes_reach_into_sections_that_defaults_set(cells: Cells) -> None:
    found = cells(
        "defaults: {training: {sh_degree: 1}, scene: {city: big_street}}\n"
        "axes: {training.footprint: [ellipse, square], scene.gaussians: [1e5, 5e6]}\n"
    )
    assert {c.training.sh_degree for c in found} == {1}
    assert [(c.training.footprint, c.scene.gaussians) for c in found] == [
        ("ellipse", 100_000),
        ("ellipse", 5_000_000),
        ("square", 100_000),
        ("square", 5_000_000),
    ]
    assert {type(c.scene.gaussians) for c in found} == {int}


def test_dotted_axes_apply_over_whole_scenes_whatever_their_order(cells: Cells) -> None:
    found = cells("axes: {scene.views: [8, 16], scene: [{city: small_street}, {city: small_aerial, views: 4}]}\n")
    assert [(c.scene.city, c.scene.views) for c in found] == [
        ("small_street", 8),
        ("small_aerial", 8),
        ("small_street", 16),
        ("small_aerial", 16),
    ]


def test_another_city_replaces_the_scene_and_the_same_one_is_changed(cells: Cells) -> None:
    found = cells(
        "defaults: {scene: {city: small_street, gaussians: 7, seed: 3}}\n"
        "cases: [{name: a, scene: {city: small_aerial}}, {name: b, scene: {city: small_street, views: 4}},"
        " {name: c, scene.seed: 1}]\n"
    )
    assert [(c.scene.city, c.scene.gaussians, c.scene.seed) for c in found] == [
        ("small_aerial", None, 0),
        ("small_street", 7, 3),
        ("small_street", 7, 1),
    ]


def test_a_case_of_several_seeds_is_a_cell_a_seed(cells: Cells) -> None:
    found = cells("cases: [{name: one, seeds: 3, batch: 2}, {name: two}]\n")
    assert [(cell.name, cell.seed, cell.batch) for cell in found] == [
        ("one", 0, 2),
        ("one", 1, 2),
        ("one", 2, 2),
        ("two", 0, 1),
    ]


def test_cases_start_from_the_defaults_and_not_from_the_axes(cells: Cells) -> None:
    found = cells("defaults: {batch: 2}\naxes: {ranks: [2]}\ncases: [{name: one, seed: 5}]\n")
    assert [(c.name, c.batch, c.ranks, c.seed) for c in found] == [(None, 2, 2, 0), ("one", 2, 1, 5)]


@pytest.mark.usefixtures("more_strategies")
def test_a_ladder_adds_its_steps_one_by_one(cells: Cells) -> None:
    found = cells(
        "ladder: {strategy: weaver, steps:"
        " [{raster: fused}, {codec: bitmap, prune: true}, {training.footprint: square}]}\n"
    )
    assert [c.name for c in found] == [
        "base",
        "+raster=fused",
        "+codec=bitmap,prune=true",
        "+training.footprint=square",
    ]
    assert [c.options for c in found] == [
        {},
        {"raster": "fused"},
        {"codec": "bitmap", "raster": "fused", "prune": True},
        {"codec": "bitmap", "raster": "fused", "prune": True},
    ]
    assert [c.training.footprint for c in found] == ["ellipse", "ellipse", "ellipse", "square"]


LEAVE_ONE_OUT = (
    "ladder: {strategy: weaver, steps: [{raster: fused}, {codec: bitmap}, {prune: true}], also: leave_one_out}\n"
)


@pytest.mark.usefixtures("more_strategies")
def test_leave_one_out_keeps_all_steps_but_one(cells: Cells) -> None:
    found = {c.name: c.options for c in cells(LEAVE_ONE_OUT)}
    assert found == {
        "base": {},
        "+raster=fused": {"raster": "fused"},
        "+codec=bitmap = all-prune": {"raster": "fused", "codec": "bitmap"},
        "+prune=true": {"raster": "fused", "codec": "bitmap", "prune": True},
        "all-raster": {"codec": "bitmap", "prune": True},
        "all-codec": {"raster": "fused", "prune": True},
    }


@pytest.mark.usefixtures("more_strategies")
def test_leaving_out_one_of_two_steps_of_a_key_falls_back_to_the_other(cells: Cells) -> None:
    found = cells("ladder: {strategy: weaver, steps: [{share: 0.1}, {share: 0.2}], also: leave_one_out}\n")
    assert {c.name: c.options["share"] for c in found if c.options} == {
        "+share=0.1 = all-share=0.2": 0.1,
        "+share=0.2 = all-share=0.1": 0.2,
    }


@pytest.mark.usefixtures("more_strategies")
def test_several_ladders_have_axes_and_names_of_their_own(cells: Cells) -> None:
    found = cells(
        "defaults: {batch: 2}\naxes: {seed: [0]}\n"
        "ladder:\n"
        "  - {name: w, strategy: weaver, steps: [{prune: true}], axes: {ranks: [2, 4]}}\n"
        "  - {strategy: loom, steps: [{halo: 0}]}\n"
    )
    assert [(c.name, c.strategy, c.ranks, c.batch) for c in found] == [
        (None, "single", 1, 2),
        ("w: base", "weaver", 2, 2),
        ("w: +prune=true", "weaver", 2, 2),
        ("w: base", "weaver", 4, 2),
        ("w: +prune=true", "weaver", 4, 2),
        ("base", "loom", 1, 2),
        ("+halo=0", "loom", 1, 2),
    ]


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ("{strategy: loom, ranks: [2, 4]}", {("single", 1), ("single", 2), ("single", 4), ("loom", 1)}),
        ("{strategy: single, ranks: 2}", {("single", 1), ("single", 4), ("loom", 1), ("loom", 2), ("loom", 4)}),
        ("{batch: 1, strategy: loom}", {("single", 1), ("single", 2), ("single", 4)}),
        ("{scene: {city: small_street}, ranks: [1, 2]}", {("single", 4), ("loom", 4)}),
        ("{size: [1920, 1080], ranks: [1, 2]}", {("single", 4), ("loom", 4)}),
        ("{size: [[1, 1], [1920, 1080]], ranks: [1, 2]}", {("single", 4), ("loom", 4)}),
        ("{training.footprint: ellipse, ranks: [1, 2]}", {("single", 4), ("loom", 4)}),
        ("{strategy: loom, options.halo: 10}", {("single", 1), ("single", 2), ("single", 4)}),
    ],
)
@pytest.mark.usefixtures("more_strategies")
def test_excluded_are_cells_that_match_every_key_defaults_included(
    cells: Cells, entry: str, left: set[tuple[str, int]]
) -> None:
    found = cells(f"axes: {{strategy: [single, loom], ranks: [1, 2, 4]}}\nexclude: [{entry}]\n")
    assert {(c.strategy, c.ranks) for c in found} == left


def test_equal_points_become_one_cell_with_their_names(cells: Cells) -> None:
    found = cells("axes: {batch: [1, 1, 2]}\ncases: [{name: a, batch: 1}, {name: b, ranks: 1}]\n")
    assert [(c.batch, c.name) for c in found] == [(1, "a = b"), (2, None)]


BY_DEVICE = """
defaults: {size: [1920, 1080], training: {sh_degree: 2, sh_every: 10}, scene: {city: big_street, seed: 4}}
axes: {ranks: [1, 2, 4, 8], batch: [2]}
stop: {noise: 0.01, min_passes: 9}
by_device:
  cpu:
    defaults: {size: [320, 180], training.sh_degree: 1, scene: {gaussians: 20000}}
    axes: {ranks: [1, 2]}
    stop: {noise: 0.1}
"""


def test_the_devices_section_is_merged_and_its_lists_replace(cells: Cells) -> None:
    on_cpu = cells(BY_DEVICE)
    assert [(c.ranks, c.batch, c.size, c.device) for c in on_cpu] == [
        (1, 2, (320, 180), "cpu"),
        (2, 2, (320, 180), "cpu"),
    ]
    assert (on_cpu[0].training.sh_degree, on_cpu[0].training.sh_every) == (1, 10)
    assert (on_cpu[0].scene.city, on_cpu[0].scene.seed, on_cpu[0].scene.gaussians) == ("big_street", 4, 20_000)
    assert (on_cpu[0].stop.noise, on_cpu[0].stop.min_passes) == (0.1, 9)
    on_cuda = cells(BY_DEVICE, machine=TWO_GPUS)
    assert [(c.ranks, c.size, c.device) for c in on_cuda] == [(n, (1920, 1080), "cuda") for n in (1, 2, 4, 8)]


def test_a_device_that_is_set_chooses_its_section(suite_file: SuiteFile) -> None:
    file = suite_file("suite: 1\n" + BY_DEVICE)
    assert plan(file, ["device=cpu"], machine=TWO_GPUS).device == "cpu"
    assert len(plan(file, device="cpu", machine=TWO_GPUS).cells) == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("ranks=2", [(2, 1), (2, 5)]),
        ("ranks=[2, 3]", [(2, 1), (3, 1), (1, 5)]),
        ("batch=7", [(1, 7), (4, 7)]),
    ],
)
def test_an_override_replaces_the_axis_and_goes_over_every_point(
    cells: Cells, override: str, expected: list[tuple[int, int]]
) -> None:
    found = cells("axes: {ranks: [1, 4]}\ncases: [{name: a, batch: 5}]\n", override)
    assert [(c.ranks, c.batch) for c in found] == expected


def test_overrides_go_over_the_devices_section(cells: Cells) -> None:
    assert {c.size for c in cells(BY_DEVICE, "size=[64, 48]")} == {(64, 48)}


def test_an_override_that_empties_an_exclusion_is_no_mistake(cells: Cells) -> None:
    found = cells("axes: {ranks: [1, 8]}\nexclude: [{ranks: 8}]\n", "ranks=2")
    assert [c.ranks for c in found] == [2]


@pytest.mark.usefixtures("more_strategies")
def test_an_option_goes_to_the_strategies_that_have_it(cells: Cells) -> None:
    found = cells("axes: {strategy: [single, weaver]}\n", "options.codec=bitmap")
    assert [(c.strategy, c.options) for c in found] == [("single", {}), ("weaver", {"codec": "bitmap"})]


def test_a_scene_override_is_a_folder_that_replaces_every_scene(cells: Cells) -> None:
    Path("garden").mkdir()
    found = cells("axes: {scene: [{city: small_street, gaussians: 9}, {city: small_aerial}]}\n", "scene=garden")
    assert [(c.scene.path, c.scene.city, c.scene.gaussians) for c in found] == [("garden", None, None)]


@pytest.mark.parametrize(
    ("only", "left"),
    [
        (("strategy=single",), 3),
        (("ranks=1,4",), 4),
        (("ranks=1,4", "strategy=loom"), 2),
        (("strategy=l*",), 3),
        (("scene=small_*",), 6),
        (("size=1920x1080", "ranks=2"), 2),
        (("training.t_stop=1e-4", "ranks=2.0"), 2),
        (("options.halo=10",), 3),
    ],
)
@pytest.mark.usefixtures("more_strategies")
def test_filters_keep_cells_that_match_all_of_them(cells: Cells, only: tuple[str, ...], left: int) -> None:
    assert len(cells("axes: {strategy: [single, loom], ranks: [1, 2, 4]}\n", only=only)) == left


@pytest.mark.usefixtures("more_strategies")
def test_a_name_filter_finds_each_name_of_a_cell(cells: Cells) -> None:
    text = LEAVE_ONE_OUT
    for pattern in ("all-prune", "+codec=bitmap"):
        assert [c.name for c in cells(text, only=(f"name={pattern}",))] == ["+codec=bitmap = all-prune"]
    assert len(cells(text, only=("name=all-*",))) == 3


def test_a_cell_filter_takes_the_beginning_of_an_id(suite_file: SuiteFile, laptop: Machine) -> None:
    file = suite_file("suite: 1\naxes: {ranks: [1, 2, 4]}\n")
    wanted = plan(file, machine=laptop).cells[1]
    assert plan(file, only=[f"cell={wanted.cell_id[:8]}"], machine=laptop).cells == (wanted,)


def settings_of(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(include={"scenario", "strategy", "images", "size", "name", "repeats"})


PREPARE = """
defaults: {size: [64, 48], scene: {city: small_aerial}, repeats: 5}
prepare: {trained: {images: 70}, unused: {images: 1}}
axes: {batch: [1, 2], from: [trained]}
cases: [{name: street, scene: {city: small_street}, from: trained}]
"""


def test_preparations_come_first_and_are_shared_by_content(suite_file: SuiteFile, laptop: Machine) -> None:
    planned = plan(suite_file("suite: 1\n" + PREPARE), machine=laptop).cells
    assert [(p.preparation, p.cell.scene.city) for p in planned] == [
        (True, "small_aerial"),
        (True, "small_street"),
        (False, "small_aerial"),
        (False, "small_aerial"),
        (False, "small_street"),
    ]
    assert settings_of(planned[0].cell) == {
        "scenario": "train",
        "strategy": "single",
        "images": 70,
        "size": (64, 48),
        "name": "trained",
        "repeats": 1,
    }
    assert [p.cell.from_ for p in planned[2:]] == [planned[0].cell_id, planned[0].cell_id, planned[1].cell_id]


def test_a_cells_id_follows_the_content_of_its_preparation_and_not_its_name(
    suite_file: SuiteFile, laptop: Machine
) -> None:
    def ids(text: str) -> list[str]:
        return [p.cell_id for p in plan(suite_file("suite: 1\n" + text), machine=laptop).cells if not p.preparation]

    assert ids(PREPARE) == ids(PREPARE.replace("trained", "grown"))
    assert not set(ids(PREPARE)) & set(ids(PREPARE.replace("images: 70", "images: 71")))


def test_only_preparations_that_are_used_are_planned(suite_file: SuiteFile, laptop: Machine) -> None:
    file = suite_file("suite: 1\n" + PREPARE)
    assert [p.cell.scene.city for p in plan(file, only=["name=street"], machine=laptop).cells] == ["small_street"] * 2
    preparation = plan(file, machine=laptop).cells[0]
    assert plan(file, only=[f"cell={preparation.cell_id}"], machine=laptop).cells == (preparation,)


@pytest.mark.usefixtures("more_strategies")
def test_the_devices_section_may_change_a_part_of_a_ladder(cells: Cells) -> None:
    found = cells(
        "ladder: {strategy: weaver, steps: [{prune: true}], axes: {ranks: [4, 8]}}\n"
        "by_device: {cpu: {ladder: {axes: {ranks: [2]}}}}\n"
    )
    assert [(c.name, c.ranks) for c in found] == [("base", 2), ("+prune=true", 2)]


def test_stop_is_a_setting_of_every_cell_that_cases_may_change(cells: Cells) -> None:
    found = cells("stop: {noise: 0.2, max_seconds: 5}\ncases: [{name: a}, {name: b, batch: 2, stop: {noise: 0.3}}]\n")
    assert [(c.stop.noise, c.stop.max_seconds, c.stop.min_passes) for c in found] == [(0.2, 5, 10), (0.3, 5, 10)]


def test_more_combinations_than_anyone_means_are_refused(suite_file: SuiteFile, laptop: Machine) -> None:
    axes = ", ".join(f"{key}: {list(range(1, 23))}" for key in ("ranks", "batch", "seed"))
    with pytest.raises(UserError, match=r"^s\.yaml:2: axes: 10648 combinations; expected at most 10000$"):
        plan(suite_file(f"suite: 1\naxes: {{{axes}}}\n"), machine=laptop)
