"""YAML as suites are read: values of YAML 1.2, lines, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.suite.settings import plain
from harness.suite.yaml_source import MAX_BYTES, Place, parse, read, yaml_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e6", 1e6),
        ("5E+6", 5e6),
        (".5", 0.5),
        ("-1.", -1.0),
        ("+12", 12),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("on", "on"),
        ("yes", "yes"),
        ("off", "off"),
        ("No", "No"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("'1e6'", "1e6"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read_value = parse(text, "s.yaml")
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "s.yaml:3: a: given twice, first on line 1; expected once"),
        ("a: &x 1\n", "s.yaml:1: anchors and aliases are not supported"),
        ("a: 1\nb: *x\n", "s.yaml:2: anchors and aliases are not supported"),
        ("a:\n  <<: {b: 1}\n", "s.yaml:2: merge keys (<<) are not supported"),
        ("a: !!python/name:os.system x\n", "s.yaml:1: tag 'tag:yaml.org,2002:python/name:os.system' is not supported"),
        ("a: .inf\n", "s.yaml:1: value .inf; expected a finite number"),
        ("a: 1e999\n", "s.yaml:1: value 1e999; expected a finite number"),
        ("a: .nan\n", "s.yaml:1: value .nan; expected a finite number"),
        ("a: " + "9" * 5000, "s.yaml:1: number of 5000 digits; expected at most 40"),
        ("[1, 2]: 3\n", "s.yaml:1: a key must be a word of at most 100 characters"),
        ("? |\n  a\n  b\n: 3\n", "s.yaml:1: a key must be a word of at most 100 characters"),
        ("a" * 101 + ": 3\n", "s.yaml:1: a key must be a word of at most 100 characters"),
        ("a: \x01\n", "s.yaml:1: holds a character that YAML does not allow"),
    ],
)
def test_what_could_surprise_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "s.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["a: [1, 2\nb: 3\n", "a: b: c\n", "\tx: 1\n", "a: 1\n---\nb: 2\n", "'unfinished", "- {"]
)
def test_broken_yaml_is_one_sentence_with_its_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^s\.yaml:\d+: not valid YAML: [^\n]+$"):
        parse(text, "s.yaml")


def test_deep_nesting_is_refused_before_it_exhausts_the_stack() -> None:
    with pytest.raises(UserError, match=r"nested deeper than \d+ levels"):
        parse("[" * 50_000, "s.yaml")


def test_keys_values_and_items_know_their_lines() -> None:
    tree = parse("a: 1\nb:\n  - x\n  - y\nc:\n  d:\n    e\n", "s.yaml")
    assert tree.key_places["b"] == Place("s.yaml", 2)
    assert [place.line for place in tree["b"].places] == [3, 4]
    assert tree["c"].key_places["d"].line == 6
    assert tree["c"].value_places["d"].line == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "s.yaml: is empty; expected a suite"),
        (b"- 1\n", "s.yaml:1: holds [1]; expected a mapping of keys"),
        (b"a: 1\nb: \xff\n", "s.yaml:2: not UTF-8 text"),
        (b"#" * (MAX_BYTES + 1), f"s.yaml: {MAX_BYTES + 1} bytes; expected a suite of at most {MAX_BYTES}"),
    ],
)
def test_files_that_are_no_suite_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(Path("s.yaml"))
    assert str(caught.value) == message


def test_missing_files_and_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^no\.yaml: no such file; expected a suite in YAML$"):
        read(Path("no.yaml"))
    Path("d").mkdir()
    with pytest.raises(UserError, match=r"^d: cannot be read: Is a directory$"):
        read(Path("d"))


_SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6) | st.text("abc xyz", max_size=6)
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(_TREES)
def test_values_survive_writing_and_reading(tree: Any) -> None:
    assert plain(parse(yaml_text(tree), "s.yaml")) == plain(tree)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@settings(max_examples=25, deadline=None)
@given(_TREES)
def test_common_yaml_reads_the_same_as_with_pyyaml(tree: Any) -> None:
    text = yaml.dump({"tree": tree}, Dumper=_WithoutAliases)
    assert plain(parse(text, "s.yaml")) == plain(yaml.safe_load(text))
