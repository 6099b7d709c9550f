"""Every mistake in a suite is one sentence with file, line, key, value and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.suite.machine import Machine
from harness.suite.plan import plan

SuiteFile = Callable[[str], Path]

STRUCTURE = [
    ("defaults: {}\n", "s.yaml:1: suite: missing; expected the version of the grammar, 1"),
    ("suite: 2\n", "s.yaml:1: suite: value 2; expected 1"),
    ("suite: true\n", "s.yaml:1: suite: value true; expected 1"),
    ("suite: 1\naxis: {}\n", "s.yaml:2: axis: unknown key; did you mean 'axes'?"),
    ("suite: 1\nranks: 2\n", "s.yaml:2: ranks: unknown key; did you mean 'defaults.ranks'?"),
    ("suite: 1\nname: [a]\n", "s.yaml:2: name: value ['a']; expected text"),
    (
        "suite: 1\nname: ../a\n",
        "s.yaml:2: name: value '../a'; expected letters, digits, '.', '_' and '-' (it names a folder)",
    ),
    ("suite: 1\ndefaults: 3\n", "s.yaml:2: defaults: value 3; expected a mapping"),
    ("suite: 1\ndefaults:\n  rank: 2\n", "s.yaml:3: defaults.rank: unknown key; did you mean 'ranks'?"),
    (
        "suite: 1\ndefaults:\n  training: {footprnt: square}\n",
        "s.yaml:3: defaults.training.footprnt: unknown key; did you mean 'footprint'?",
    ),
    (
        "suite: 1\ndefaults: {training.footprnt: square}\n",
        "s.yaml:2: defaults.training.footprnt: unknown key; did you mean 'footprint'?",
    ),
    (
        "suite: 1\ndefaults: {footprint: square}\n",
        "s.yaml:2: defaults.footprint: unknown key; did you mean 'training.footprint'?",
    ),
    (
        "suite: 1\ndefaults:\n  scene: {city: small_street}\n  scene.city: small_aerial\n",
        "s.yaml:4: defaults.scene.city: given twice, once nested and once dotted; expected once",
    ),
    (
        "suite: 1\ndefaults:\n  size: 5\n  size.x: 3\n",
        "s.yaml:4: defaults.size.x: 'size' has a value of its own; expected one of both",
    ),
    ("suite: 1\naxes: {ranks: 2}\n", "s.yaml:2: axes.ranks: value 2; expected a list of values"),
    ("suite: 1\naxes: [{ranks: 2}]\n", "s.yaml:2: axes[0].ranks: value 2; expected a list of values"),
    ("suite: 1\naxes:\n  - {ranks: [2]}\n  - 3\n", "s.yaml:4: axes[1]: value 3; expected a mapping"),
    ("suite: 1\naxes: [{repeats: [1, 2]}]\n", "s.yaml:2: axes[0].repeats: value [1, 2]; expected one value"),
    ("suite: 1\naxes: {repeats: [1]}\n", "s.yaml:2: axes.repeats: unknown key"),
    ("suite: 1\naxes: {ranks: []}\n", "s.yaml:2: axes.ranks: value []; expected at least one value"),
    ("suite: 1\naxes:\n  ranks:\n    - 1\n    - two\n", "s.yaml:5: axes.ranks: value 'two'; expected an integer"),
    ("suite: 1\naxes: {name: [a]}\n", "s.yaml:2: axes.name: unknown key; expected one of: batch"),
    ("suite: 1\ncases: {a: 1}\n", "s.yaml:2: cases: value {a: 1}; expected a list of mappings"),
    ("suite: 1\ncases:\n  - 7\n", "s.yaml:3: cases[0]: value 7; expected a mapping"),
    ("suite: 1\ncases:\n  - {ranks: 1}\n", "s.yaml:3: cases[0].name: missing; expected a name of its own"),
    (
        "suite: 1\ncases:\n  - {name: a, seeds: 1}\n",
        "s.yaml:3: cases[0].seeds: value 1; expected a number of seeds, two or more",
    ),
    (
        "suite: 1\ncases:\n  - {name: a, seeds: 5, seed: 2}\n",
        "s.yaml:3: cases[0].seeds: given beside seed; expected one of both",
    ),
    ("suite: 1\ndefaults:\n  seeds: 5\n", "s.yaml:3: defaults.seeds: unknown key; did you mean 'seed'?"),
    (
        "suite: 1\ncases:\n  - {name: a}\n  - {name: a}\n",
        "s.yaml:4: cases[1].name: value 'a' is taken on line 3; expected a name of its own",
    ),
    (
        "suite: 1\nladder: {steps: [{raster: fused}]}\n",
        "s.yaml:2: ladder.strategy: missing; expected the strategy to ablate",
    ),
    ("suite: 1\nladder: {strategy: weaver}\n", "s.yaml:2: ladder.steps: missing; expected a list of steps"),
    ("suite: 1\nladder: {strategy: weaver, steps: []}\n", "s.yaml:2: ladder.steps: no items; expected a list of steps"),
    (
        "suite: 1\nladder: {strategy: weaver, steps: [{}]}\n",
        "s.yaml:2: ladder.steps[0]: value {}; expected at least one option",
    ),
    (
        "suite: 1\nladder: {strategy: weaver, steps: [{prune: true}], also: leave_two_out}\n",
        "s.yaml:2: ladder.also: value 'leave_two_out'; expected leave_one_out",
    ),
    (
        "suite: 1\nladder:\n  - {strategy: weaver, step: []}\n",
        "s.yaml:3: ladder[0].step: unknown key; did you mean 'steps'?",
    ),
    ("suite: 1\nexclude:\n  - {rank: 1}\n", "s.yaml:3: exclude[0].rank: unknown key; did you mean 'ranks'?"),
    ("suite: 1\nexclude:\n  - {}\n", "s.yaml:3: exclude[0]: value {}; expected at least one key"),
    (
        "suite: 1\nexclude:\n  - {ranks: 8}\n",
        "s.yaml:3: exclude: value {ranks: 8} matches no cell; expected at least one",
    ),
    ("suite: 1\nexclude: [{ranks: 1}]\n", "s.yaml:1: every cell is excluded; expected at least one cell"),
    ("suite: 1\nby_device: {gpu: {}}\n", "s.yaml:2: by_device.gpu: unknown key; expected one of: cpu, cuda"),
    (
        "suite: 1\nby_device:\n  cuda:\n    axis: {}\n",
        "s.yaml:4: by_device.cuda.axis: unknown key; did you mean 'axes'?",
    ),
    (
        "suite: 1\nby_device:\n  cuda:\n    defaults: {batch: no}\n",
        "s.yaml:4: defaults.batch: value 'no'; expected an integer",
    ),
    ("suite: 1\nstop: {noise: 0}\n", "s.yaml:2: stop.noise: value 0; expected more than 0"),
    ("suite: 1\ndefaults: {from: trained}\n", "s.yaml:2: from: value 'trained'; the suite has no prepare section"),
    (
        "suite: 1\nprepare: {trained: {images: 10}}\ndefaults:\n  from: traind\n",
        "s.yaml:4: from: value 'traind'; did you mean 'trained'?",
    ),
    (
        "suite: 1\nprepare:\n  trained: {scenario: throughput}\ndefaults: {from: trained}\n",
        "s.yaml:3: prepare.trained.scenario: value 'throughput'; expected 'train'",
    ),
    ("suite: 1\nprepare: {trained: {from: x}}\n", "s.yaml:2: prepare.trained.from: unknown key"),
]

VALUES = [
    ("ranks: 0", "ranks: value 0; expected at least 1"),
    ("ranks: 1.5", "ranks: value 1.5; expected an integer"),
    ("ranks: '2'", "ranks: value '2'; expected an integer"),
    ("ranks: true", "ranks: value true; expected an integer"),
    ("ranks: [1, 2]", "ranks: value [1, 2]; expected an integer"),
    ("scenario: trian", "scenario: value 'trian'; expected 'train', 'throughput', 'render', 'kernels' or 'updates'"),
    ("kernels: fast", "kernels: value 'fast'; expected 'auto', 'reference', 'portable' or 'compiled'"),
    ("size: [320]", "size: value [320]; expected one more item"),
    ("size: [320, 180, 3]", "size: value [320, 180, 3]; expected at most 2 items"),
    ("size: [320, x]", "size[1]: value 'x'; expected an integer"),
    ("size: big", "size: value 'big'; expected a list"),
    ("size: null", "size: value null; expected [width, height], since a city's images have no size of their own"),
    ("timeout: soon", "timeout: value 'soon'; expected a number"),
    ("link: fast", "link: value 'fast'; expected native, host or paced:<GB/s>"),
    ("engine: gluon", "engine: value 'gluon'; expected one of: auto, local, gloo, nccl, virtual, symmetric"),
    ("strategy: singel", "strategy: value 'singel'; expected one of: single, weaver, loom; did you mean 'single'?"),
    ("options: fast", "options: value 'fast'; expected a mapping"),
    ("options: {codec: bitmap}", "options.codec: strategy 'single' has no such option; 'weaver' has it"),
    (
        "options: {speed: 1}",
        "options.speed: strategy 'single' has no such option; expected none, since it has no options",
    ),
    (
        "{strategy: weaver, options: {codex: 1}}",
        "options.codex: strategy 'weaver' has no such option; did you mean 'codec'?",
    ),
    ("{strategy: weaver, options: {codec: zip}}", "options.codec: value 'zip'; expected 'dense' or 'bitmap'"),
    ("{strategy: weaver, options.prune: yes}", "options.prune: value 'yes'; expected true or false"),
    ("{strategy: loom, options.halo: 1.5}", "options.halo: value 1.5; expected an integer"),
    ("scene: 3", "scene: value 3; expected a mapping"),
    ("scene: {gaussians: 5}", "scene: value {gaussians: 5}; expected a scene needs exactly one of 'city' and 'path'"),
    ("scene: {city: small_aerial, tile: [0, 1]}", "scene.tile[0]: value 0; expected at least 1"),
    ("scene: {city: small_aeriel}", "did you mean 'small_aerial'?"),
    ("scene: nowhere", "scene.path: value 'nowhere'; expected a folder or transforms.json that exists"),
    ("scene: {city: small_aerial, model: a.ply}", "scene.model: value 'a.ply'; expected a PLY file that exists"),
    (
        "{scenario: train, scene: {city: anchor}}",
        "scene.city: value 'anchor' has no points to train from; expected another or `from`",
    ),
    ("training: {footprint: round}", "training.footprint: value 'round'; expected 'ellipse' or 'square'"),
    ("training: {background: [0, 0]}", "training.background: value [0, 0]; expected one more item"),
    ("training.t_stop: 1", "training.t_stop: value 1; expected less than 1"),
]


@pytest.mark.usefixtures("more_strategies")
@pytest.mark.parametrize(("text", "message"), STRUCTURE)
def test_mistakes_of_structure_name_line_key_and_expectation(
    suite_file: SuiteFile, laptop: Machine, text: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        plan(suite_file(text), machine=laptop)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("more_strategies")
@pytest.mark.parametrize(("setting", "message"), VALUES)
@pytest.mark.parametrize("section", ["defaults", "cases"])
def test_wrong_values_name_line_key_value_and_expectation(
    suite_file: SuiteFile, laptop: Machine, section: str, setting: str, message: str
) -> None:
    inner = setting if setting.startswith("{") else "{" + setting + "}"
    text = (
        f"suite: 1\n\ndefaults: {inner}\n"
        if section == "defaults"
        else f"suite: 1\ncases:\n  - {{name: a, {inner[1:]}\n"
    )
    with pytest.raises(UserError) as caught:
        plan(suite_file(text), machine=laptop)
    assert str(caught.value).startswith("s.yaml:3: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("more_strategies")
@pytest.mark.parametrize(
    ("overrides", "only", "message"),
    [
        (["ranks"], [], "--set ranks: expected key=value, as in ranks=2 or training.footprint=square"),
        (["=2"], [], "--set =2: expected key=value"),
        (["rank=2"], [], "--set rank=2: rank: unknown key; did you mean 'ranks'?"),
        (["ranks=0"], [], "--set ranks=0: ranks: value 0; expected at least 1"),
        (["ranks=[1, 0]"], [], "--set ranks=[1, 0]: ranks: value 0; expected at least 1"),
        (["ranks=[]"], [], "--set ranks=[]: ranks: value []; expected at least one value"),
        (["batch=[1, 2]"], [], "--set batch=[1, 2]: batch: value [1, 2]; expected an integer"),
        (["ranks=[1"], [], "--set ranks=[1: not valid YAML: "),
        (["ranks=1", "ranks=2"], [], "--set ranks=2: ranks: given twice; expected once"),
        (["name=a"], [], "--set name=a: name: unknown key"),
        (["device=gpu"], [], "--set device=gpu: device: value 'gpu'; expected 'cpu', 'cuda' or 'auto'"),
        (["scene=nowhere"], [], "--set scene=nowhere: scene.path: value 'nowhere'; expected a folder"),
        (
            ["options.halo=3"],
            [],
            "--set options.halo=3: options.halo: strategy 'single' has no such option; 'loom' has it",
        ),
        ([], ["ranks"], "--only ranks: expected key=value[,value], as in strategy=single or name=all-*"),
        ([], ["rank=2"], "--only rank=2: rank: unknown key; did you mean 'ranks'?"),
        ([], ["ranks=16"], "--only ranks=16: ranks: matches none of 2 cells, which have 1, 2"),
        ([], ["size=[1920, 1080]"], "--only size=[1920, 1080]: size: matches none of 2 cells, which have 1920x1080"),
        ([], ["cell=zz"], "--only cell=zz: cell: matches none of 2 cells; `plan` lists them"),
        ([], ["ranks=1", "name=x"], "--only name=x: name: matches none of 2 cells; `plan` lists them"),
    ],
)
def test_mistakes_on_the_command_line_name_the_argument(
    suite_file: SuiteFile, laptop: Machine, overrides: list[str], only: list[str], message: str
) -> None:
    file = suite_file("suite: 1\naxes: {ranks: [1, 2]}\n")
    with pytest.raises(UserError) as caught:
        plan(file, overrides, only, machine=laptop)
    assert str(caught.value).startswith(message)


def test_filters_that_only_together_match_nothing_are_an_error(suite_file: SuiteFile, laptop: Machine) -> None:
    file = suite_file("suite: 1\naxes: {ranks: [1, 2], batch: [1]}\ncases: [{name: a, batch: 4}]\n")
    with pytest.raises(UserError, match=r"^--only: no cell passes all 2 filters"):
        plan(file, only=["ranks=2", "batch=4"], machine=laptop)


def test_two_folders_of_one_name_are_refused_since_ids_could_not_tell_them_apart(
    suite_file: SuiteFile, laptop: Machine
) -> None:
    file = suite_file("suite: 1\naxes: {scene: [a/dense, b/dense]}\n")
    for name in "ab":
        Path(name, "dense").mkdir(parents=True)
    with pytest.raises(UserError, match=r"'a/dense' and 'b/dense' end in the same name"):
        plan(file, machine=laptop)
