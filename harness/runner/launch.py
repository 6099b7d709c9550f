"""Starting the processes of a cell, watching them, and ending all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

DONE = "done"
"""Empty file, the last that a worker writes."""
POLL_SECONDS = 0.2
TERM_SECONDS = 5.0
"""Between asking the processes to end and killing them."""
EXIT_SECONDS = 20.0
"""After `done`, processes may take so long to leave: libraries that hang at exit cost no result."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Ended:
    """How the processes of a cell ended. code: of the first process, negative for a signal; None when it was ended
    by us. seconds: wall time, start-up included."""

    code: int | None
    seconds: float
    timed_out: bool = False


def worker_command(folder: Path, processes: int) -> list[str]:
    """The command that runs the cell in the folder; torchrun costs seconds, so one process starts directly."""
    worker = ["-m", "harness.runner.worker", str(folder)]
    if processes == 1:
        return [sys.executable, *worker]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [sys.executable, *torchrun, "--nproc-per-node", str(processes), "--max-restarts", "0", *worker]


def worker_environment(threads: int, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The worker's environment: so many threads a process, and ranks that talk over this machine's loopback."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        **inherited,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
        # NVLink multicast needs fabric rights that containers often lack; without it NCCL uses plain NVLink.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }


class Launched:
    """A running command in a session of its own, and a pipe to its standard input that closes when this process ends.

    As a context manager it leaves nothing running behind, whatever happens inside.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]):
        self._started = time.monotonic()
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait(self, timeout: float, done: Path, poll: Callable[[], None]) -> Ended:
        """Until it ends, has left `done` for EXIT_SECONDS, or the timeout (seconds) is over; calls poll at 5 Hz."""
        done_since: float | None = None
        while True:
            try:
                code = self._process.wait(POLL_SECONDS)
                poll()
                return Ended(code, self._seconds())
            except subprocess.TimeoutExpired:
                poll()
            if done_since is None and done.exists():
                done_since = self._seconds()
            if done_since is not None and self._seconds() - done_since > EXIT_SECONDS:
                return Ended(None, self._seconds())
            if done_since is None and self._seconds() > timeout:
                return Ended(None, self._seconds(), timed_out=True)

    def code(self, timeout: float | None) -> int | None:
        """The exit code once it has ended, or None after the timeout, seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End every process that is left: end of input, SIGTERM, and after TERM_SECONDS SIGKILL."""
        left = descendants(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.poll() is None:
            _signal_group(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_SECONDS)
        _signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # torchrun gives every rank a session of its own, which a signal to our group does not reach.
        for pid, start in left.items():
            if _start_time(pid) == start:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def descendants(pid: int) -> dict[int, str]:
    """Children of the process and theirs, by process id, with their start times; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (fields := _stat(int(folder.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: dict[int, str] = {}
    waiting = list(children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        if (start := _start_time(child)) is not None:
            found[child] = start
        waiting += children.get(child, ())
    return found


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of the process: with it a reused process id is not mistaken."""
    fields = _stat(pid)
    return fields[19] if fields is not None else None


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (proc(5)); the name before them may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
