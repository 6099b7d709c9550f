"""The schemas that editors and other programs are given accept what the package does, and refuse what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UserError
from harness.suite.grammar import load
from harness.suite.json_schema import record_schema, suite_schema
from harness.suite.settings import plain
from harness.suite.yaml_source import read

CHECKOUT = Path(__file__).parents[3]
SUITES = sorted((CHECKOUT / "suites").glob("*.yaml"))
HEAD = "suite: 1\ndefaults: {scene: {city: small_aerial}}\n"


@pytest.fixture(scope="module")
def suites():
    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_every_suite_of_ours_is_valid(suites, suite):
    assert [error.message for error in suites.iter_errors(plain(read(suite)))] == []


@pytest.mark.parametrize(
    "text",
    [
        "axis: {ranks: [1]}\n",
        "axes: {ranks: 1}\n",
        "cases: [{ranks: 2}]\n",
        "stop: {noise: 0}\n",
        "by_device: {gpu: {}}\n",
        "ladder: {steps: [{codec: bitmap}]}\n",
        "cases: [{name: a, ranks: two}]\n",
        "cases: [{name: a, seeds: 1}]\n",
        "cases: [{name: a, training: {footprints: square}}]\n",
    ],
)
def test_what_the_grammar_refuses_the_schema_refuses(suites, tmp_path, text):
    file = tmp_path / "s.yaml"
    file.write_text(HEAD + text)
    with pytest.raises(UserError):
        load(file)
    assert not suites.is_valid(plain(read(file)))


def test_dotted_keys_and_a_scene_given_as_a_path_are_valid(suites, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("suite: 1\ndefaults: {scene: photos, training.footprint: square}\naxes: {scene.views: [4, 8]}\n")
    load(file)
    assert suites.is_valid(plain(read(file)))


def test_committed_records_are_valid():
    validator = jsonschema.Draft202012Validator(record_schema())
    found = sorted((CHECKOUT / "reports").rglob("record.json"))[::20]
    assert found
    for path in found:
        assert [error.message for error in validator.iter_errors(json.loads(path.read_text()))] == [], path


@pytest.mark.parametrize("kind", ["suite", "record"])
def test_the_command_prints_a_schema(kind):
    done = CliRunner().invoke(app, ["schema", kind])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["type"] == "object"
