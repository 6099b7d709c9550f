"""What a record says of its machine, and what it never says."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys

import pytest

from harness.measure.environment import commit, environment, environment_id, machine, visible_gpus

FACTS = {
    "python": "3.11.7",
    "torch": "2.9.1+cu130",
    "numba": "0.68.0",
    "numpy": "2.4.0",
    "gsplat": None,
    "cuda": "13.0",
    "nccl": "2.28.9",
    "driver": "580.1",
    "driver_cuda": "13.0",
    "cpu": "AMD EPYC",
    "cores": 2,
    "memory_bytes": 2**34,
    "os": "Linux 6.1",
    "gpus": ["NVIDIA H200", "NVIDIA H200"],
    "gpu_memory_bytes": [2**37, 2**37],
    "nvlink": 18,
}


def test_the_environment_names_neither_host_nor_path_and_has_every_key():
    facts = environment()
    assert facts.keys() == FACTS.keys()
    assert facts["python"] == platform.python_version()
    text = json.dumps(facts)
    assert "/" not in text.replace("Intel/AMD", "")
    assert len(socket.gethostname()) < 3 or socket.gethostname() not in text


def test_asking_for_it_imports_no_torch():
    program = (
        "import sys; from harness.measure.environment import environment; environment(); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize(
    ("change", "cpu_differs", "cuda_differs"),
    [
        ({"cpu": "Other"}, True, False),
        ({"cores": 4}, True, False),
        ({"gpus": ["NVIDIA H200"]}, False, True),
        ({"driver": "590.2"}, False, True),
        ({"nccl": "2.29"}, False, True),
        ({"torch": "2.10"}, True, True),
        ({"numba": "0.70"}, True, True),
        ({"os": "Linux 6.2"}, False, False),
        ({"memory_bytes": 2**35}, False, False),
    ],
)
def test_the_id_changes_with_what_changes_times_on_that_device(change, cpu_differs, cuda_differs):
    changed = FACTS | change
    assert (environment_id(FACTS, "cpu") != environment_id(changed, "cpu")) == cpu_differs
    assert (environment_id(FACTS, "cuda") != environment_id(changed, "cuda")) == cuda_differs


def test_the_machines_label_is_its_products():
    assert machine(FACTS, "cuda") == "2x NVIDIA H200"
    assert machine(FACTS, "cpu") == "CPU, AMD EPYC, 2 cores"
    assert machine(FACTS | {"gpus": ["B", "A", "B"]}, "cuda") == "2x B + 1x A"
    assert machine(FACTS | {"gpus": [], "cores": 1}, "cuda") == "CPU, AMD EPYC, 1 core"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("1,-1,0", [1]), ("0,7,1", [0]), ("GPU-bb", [1]), ("GPU-x", [])],
)
def test_visible_gpus_are_those_that_cuda_would_see(setting, expected):
    assert visible_gpus(setting, ["GPU-aa11", "GPU-bb22", "GPU-cc33"]) == expected


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def test_the_commit_says_whether_sources_changed_and_results_do_not_count(checkout):
    clean = commit(checkout)
    assert len(clean) == 12
    (checkout / "results").mkdir()
    (checkout / "results/new.json").touch()
    assert commit(checkout) == clean
    (checkout / "code.py").write_text("a = 2\n")
    assert commit(checkout) == f"{clean}+changes"


def test_a_tree_without_a_repository_says_its_commit_in_a_file(tmp_path):
    (tmp_path / "COMMIT").write_text("0123456789abcdef\n")
    assert commit(tmp_path) == "0123456789ab"


def test_without_a_checkout_the_version_stands_for_the_commit(tmp_path):
    assert "+changes" not in commit(tmp_path)
    assert commit(tmp_path) != ""
