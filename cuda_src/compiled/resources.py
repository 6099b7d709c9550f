"""What each kernel takes of a multiprocessor, as the compiler says: registers, shared memory, stack and spills.

`python -m cuda_src.compiled.resources` writes resources.json anew, which tests hold later builds to.
"""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

from cuda_src.compiled.build import Build, architecture, build, compiler_version
from cuda_src.nvcc import find_nvcc

RECORDED = Path(__file__).parent / "resources.json"

_KERNEL = re.compile(
    r"Compiling entry function '(?P<symbol>\S+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def kernel_resources(ptxas: str) -> dict[str, dict[str, int]]:
    """By kernel of this package, from what `ptxas -v` prints; CUB's own kernels are left out. shared: static."""
    found = {}
    for match in _KERNEL.finditer(ptxas):
        name = _kernel_name(match["symbol"])
        if name is None:
            continue
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found[name] = {
            "registers": int(match["registers"]),
            "shared": int(shared[1]) if shared else 0,
            "stack": int(match["stack"]),
            "spills": int(match["stores"]) + int(match["loads"]),
        }
    return found


def _kernel_name(symbol: str) -> str | None:
    """The plain name of a mangled global function, with its boolean arguments if it is a template's."""
    match = re.match(r"_Z(\d+)(\w+)", symbol)
    if match is None:
        return None
    length = int(match[1])
    name, rest = match[2][:length], match[2][length:]
    choices = re.match(r"I((?:Lb[01]E)+)E", rest)
    if choices is None:
        return name
    return f"{name}<{', '.join('true' if c == '1' else 'false' for c in re.findall('[01]', choices[1]))}>"


def taken(built: Build) -> dict[str, dict[str, int]]:
    """By kernel, what a build takes: what the compiler says, and of shared memory also what launches ask for.

    The library is loaded for that, which needs no GPU.
    """
    kernels = kernel_resources(built.resources)
    library = ctypes.CDLL(str(built.library))
    for name, resources in kernels.items():
        words = re.findall(r"\w+", name)
        for end in range(1, len(words) + 1):
            asked: Any = getattr(library, f"dynamic_shared_{'_'.join(words[:end])}", None)
            resources["shared"] += 0 if asked is None else asked()
    return kernels


def recorded() -> dict[str, Any]:
    """architecture, compiler and kernels of resources.json."""
    return json.loads(RECORDED.read_text())


def write(built: Build) -> None:
    """Replace resources.json by what this build takes."""
    nvcc = find_nvcc()
    assert nvcc is not None
    content = {
        "architecture": architecture(),
        "compiler": compiler_version(nvcc),
        "kernels": dict(sorted(taken(built).items())),
    }
    RECORDED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write(build())
