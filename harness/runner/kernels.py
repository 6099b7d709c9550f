"""Compiling kernels once, before the first cell, so that no cell's clock or timeout meets the compiler."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.runner.console import Display
from harness.runner.failure import clean_log, last_exception, log_lines
from harness.runner.launch import Launched, worker_environment

FOLDER = "compile"
_FIRST = "from harness.runner.lifeline import end_with_the_runner; end_with_the_runner()\n"
COMPILE = (sys.executable, "-c", _FIRST + "import cuda_src.portable; cuda_src.portable.compile_all()")
"""Portable kernels for the CPU: all of them, by Numba."""
COMPILE_CUDA = (*COMPILE[:2], COMPILE[2].replace("compile_all()", "compile_all(device='cuda')"))
"""Portable kernels for a GPU."""
BUILD = (sys.executable, "-c", _FIRST + "from cuda_src.compiled.build import build; build()")
"""Compiled kernels: the library, by nvcc."""
QUIET_SECONDS = 4.0
"""A warm cache answers within this time, and is not worth a line."""


def compile_kernels(out: Path, display: Display, command: Sequence[str] = COMPILE) -> bool:
    """Fill the kernel cache in a process of its own; whether that went well.

    A failure is shown and ends nothing: cells that need the kernels will say so in their own records.
    """
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    log.unlink(missing_ok=True)
    started = time.monotonic()
    with Launched(command, log, worker_environment(1)) as launched:
        code = launched.code(QUIET_SECONDS)
        if code is None:
            display.say("compiling kernels, once ...")
            code = launched.code(None)
            display.say(f"kernels compiled in {time.monotonic() - started:.0f} s")
    clean_log(folder)
    if code != 0:
        lines = log_lines(folder)
        cause = last_exception(lines) or (lines[-1] if lines else f"exit code {code}")
        display.say(f"kernels were not compiled: {cause}; see {log}")
    return code == 0
