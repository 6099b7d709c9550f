"""Starting the processes of a cell, watching them, and ending all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.2
TERM_SECONDS = 5.0
"""Between asking the processes to end and killing them."""
KILL_SECONDS = 0.01
"""For a killed process to go."""
EXIT_SECONDS = 20.0
"""After `done`, processes may take so long to leave: libraries that hang at exit cost no result."""

MARK = "SPLAT_HARNESS_LAUNCH"
"""Environment variable that all processes of one launch inherit, so that they are found whoever their parent is."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

THROUGH_HOST = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"}
"""Settings by which NCCL copies through shared host memory even where GPUs have links of their own."""


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


def worker_environment(threads: int, inherited: Mapping[str, str] = os.environ, link: str = "native") -> dict[str, str]:
    """The worker's environment: so many threads a process, and ranks that talk over this machine's loopback.

    link: of the cell; on `host` GPUs reach each other through host memory alone.
    """
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
        **(THROUGH_HOST if link == "host" else {}),
    }


class Launched:
    """A running command in a session of its own, and a pipe to its standard input that closes when this process ends.

    As a context manager it leaves nothing running behind, whatever happens inside.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]):
        self._started = time.monotonic()
        self._mark = uuid.uuid4().hex
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, MARK: self._mark},
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
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.poll() is None:
            _signal_group(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_SECONDS)
        _signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # torchrun gives every rank a session of its own, which a signal to our group does not reach; and where torchrun
        # itself was killed, its ranks are nobody's children.
        give_up = time.monotonic() + TERM_SECONDS
        while (left := marked(self._mark)) and time.monotonic() < give_up:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(KILL_SECONDS)

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def marked(mark: str) -> list[int]:
    """Processes of the launch with that mark; none where there is no /proc."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
