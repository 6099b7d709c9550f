"""Which side of the back end an operator runs on: the CPU's loops, or CUDA kernels of the same scalar functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any


def by_device(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of an operator for CPUs: where the kernel set's device is a GPU, the one of its name in `on_cuda`."""

    @wraps(operator)
    def placed(kernels: Any, *arguments: Any, **named: Any) -> Any:
        if kernels.device.type != "cuda":
            return operator(kernels, *arguments, **named)
        # Only now: a CPU needs no numba-cuda.
        on_cuda = importlib.import_module("cuda_src.portable.on_cuda")
        there = getattr(on_cuda, operator.__name__, None)
        if there is None:
            raise NotImplementedError(f"{operator.__name__} of the portable back end runs on CPUs only")
        return there(kernels, *arguments, **named)

    return placed
