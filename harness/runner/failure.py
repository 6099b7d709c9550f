"""From what a worker left behind to a status and a reason, and logs without paths of this machine."""

from __future__ import annotations

import os
import re
import signal
import site
import socket
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from harness.records.schema import METRICS, Status, WorkerResult
from harness.records.store import LOG, write_atomically
from harness.runner.disk import NO_SPACE, is_full
from harness.runner.launch import Ended
from harness.runner.progress import ProgressFile
from harness.runner.result import DONE, RESULT, is_out_of_memory
from harness.runner.whereabouts import whereabouts

TAIL_LINES = 40

_EXCEPTION = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)$")
_TORCHRUN_RANK = re.compile(r"\s*rank\s*:\s*(\d+) ")
_TORCHRUN_SIGNAL = re.compile(r"\bSignal (\d+) \(SIG[A-Z]+\)|exitcode\s*:\s*-(\d+)")
_FOLLOWS = re.compile(r"(?:[\w.]+\.)?Peer(?:Failed|Silent)Error\b")
"""Errors of ranks that another rank has let down (strategies/distribution/communicator.py)."""
_ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[^\s/'\":,;()<>]+/)+(?=[^\s/'\":,;()<>])")


def outcome(
    folder: Path, ended: Ended, progress: ProgressFile, timeout: float, kernel_killed: bool | None
) -> tuple[Status, str | None, WorkerResult | None]:
    """Status, reason and result of a cell whose processes have ended.

    The result and its marker are trusted, not the exit code: libraries abort at exit. kernel_killed: whether the
    kernel ended a process for want of memory meanwhile; None where it does not say.
    """
    seen = "; ".join(part for part in (f"last seen: {progress.last_seen()}", whereabouts(folder)) if part)
    if ended.timed_out:
        return "timeout", f"no end after {timeout:g} s; {seen}", None
    result, damage = _read_result(folder)
    if result is not None and ((folder / DONE).exists() or result.status != "ok"):
        return result.status, result.reason, result
    if damage is not None and (folder / DONE).exists():
        return "failed", damage, None
    log = log_lines(folder)
    who, number = _signalled(ended, log)
    exception = last_exception(log)
    if number == signal.SIGKILL and kernel_killed is not False:
        doubt = "" if kernel_killed else ", perhaps"
        status: Status = "oom" if kernel_killed else "failed"
        return status, f"{who}killed (SIGKILL){doubt} by the kernel for want of memory; {seen}", None
    follows = exception is not None and _FOLLOWS.match(exception) is not None
    # A rank that has said that it waits in vain is ended by NCCL's watchdog where it cannot end itself.
    watchdog = follows and number == signal.SIGABRT
    if number is not None and not watchdog and (exception is None or follows):
        return "failed", f"{who}killed by {_signal_name(number)}; {seen}", None
    if follows and exception is not None:
        error, _, text = exception.partition(": ")
        return "timeout" if error.endswith("SilentError") else "failed", f"{text}; {seen}", None
    if exception is not None:
        return "oom" if is_out_of_memory(exception) else "failed", exception, None
    memory = next((line for line in reversed(log) if is_out_of_memory(line)), None)
    if memory is not None:
        return "oom", memory.strip(), None
    if is_full(folder):
        return "failed", f"{NO_SPACE}; {seen}", None
    return "failed", f"ended with exit code {ended.code} and without a result; {seen}", None


def _read_result(folder: Path) -> tuple[WorkerResult | None, str | None]:
    """The worker's result, or what is wrong with it; neither when there is none."""
    path = folder / RESULT
    if not path.exists():
        return None, None
    try:
        result = WorkerResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        return None, f"{RESULT} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    unknown = sorted({m.metric for m in result.measurements} - set(METRICS))
    if unknown:
        return None, f"{RESULT} names metrics that the schema does not have: {', '.join(unknown)}"
    return result, None


def _signalled(ended: Ended, log: list[str]) -> tuple[str, int | None]:
    """The signal that ended the worker, and the rank (`rank 1 `) that it ended where torchrun reports one."""
    if ended.code is not None and ended.code < 0:
        return "", -ended.code
    failures = [i for i, line in enumerate(log) if line.startswith("Failures:")]
    rank, found = "", []
    for line in log[failures[-1] :] if failures else ():
        if (named := _TORCHRUN_RANK.match(line)) is not None:
            rank = f"rank {named.group(1)} "
        elif (match := _TORCHRUN_SIGNAL.search(line)) is not None:
            found.append((rank, int(match.group(1) or match.group(2))))
    # torchrun asks the other ranks to end with SIGTERM. What it calls the root cause comes last; a rank that met the
    # dead one's silence may stand there by chance.
    own = [signalled for signalled in found if signalled[1] != signal.SIGTERM]
    return own[-1] if own else ("", None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_exception(log: list[str]) -> str | None:
    """The last line that names an exception, as a traceback ends; torchrun's own, which only says that a rank failed,
    is passed over."""
    for line in reversed(log):
        found = _EXCEPTION.match(line.strip())
        if found is not None and not found.group(1).startswith("torch.distributed.elastic."):
            return found.group(1)
    return None


def log_lines(folder: Path, lines: int | None = None) -> list[str]:
    """The log's lines, or its last ones; none when there is no log."""
    try:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    found = text.replace("\r\n", "\n").splitlines()
    return found if lines is None else found[-lines:]


def clean_log(folder: Path) -> None:
    """Rewrite the log without host name and without absolute paths: logs are committed and sent to others."""
    cleaned = [portable_text(line) for line in log_lines(folder)]
    if cleaned:
        write_atomically(folder / LOG, "\n".join(cleaned) + "\n")


def portable_text(text: str) -> str:
    """Text with absolute paths shortened (to the working directory, or the package) and the host's name left out."""
    for prefix in _prefixes():
        text = text.replace(prefix + os.sep, "")
    text = _ABSOLUTE.sub(".../", text)
    host = socket.gethostname()
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text) if len(host) > 2 else text


def _prefixes() -> list[str]:
    """Folders that paths are shown relative to, longest first."""
    found: Iterable[str] = (
        os.getcwd(),
        str(Path(__file__).resolve().parents[2]),
        *site.getsitepackages(),
        *(sysconfig.get_paths()[key] for key in ("purelib", "platlib", "stdlib")),
        sys.prefix,
    )
    return sorted({path.rstrip(os.sep) for path in found if len(path) > 1}, key=len, reverse=True)


def kernel_kills() -> int | None:
    """Processes that the kernel has ended for want of memory, here or in the whole machine; None if it does not say."""
    for file in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        try:
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return int(found.group(1))
    return None
