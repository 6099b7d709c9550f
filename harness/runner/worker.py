"""The process of a cell: `python -m harness.runner.worker FOLDER`, started by the runner, directly or by torchrun."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.errors import EXIT_FAILED, EXIT_OK, UserError
from harness.records.schema import Status, WorkerResult
from harness.runner import scenario_kernels, scenario_throughput, scenario_train, scenario_updates
from harness.runner.job import Job, write_result
from harness.suite.cell import Cell
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.gloo import GlooCommunicator
from strategies.distribution.virtual import VirtualWorld

RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
SCENARIOS = {
    "train": scenario_train.run,
    "throughput": scenario_throughput.run,
    "kernels": scenario_kernels.run,
    "updates": scenario_updates.run,
}


def main(folder: Path) -> int:
    """Run the cell described in the folder on this process's ranks; the exit code of this process."""
    end_with_the_runner()
    cell = Cell.model_validate(json.loads((folder / "cell.json").read_text())["cell"])
    try:
        if cell.engine == "virtual":
            VirtualWorld(cell.ranks).run(lambda comm: run_rank(folder, comm))
        elif cell.engine == "local":
            run_rank(folder, LocalCommunicator(torch.device(cell.device), places=cell.ranks))
        else:
            dist.init_process_group("gloo", timeout=RENDEZVOUS_TIMEOUT)
            run_rank(folder, GlooCommunicator())
            # gloo aborts processes that exit with a live group.
            dist.barrier()
            dist.destroy_process_group()
            gc.collect()
    except Exception as error:
        traceback.print_exc()
        status: Status = "oom" if isinstance(error, MemoryError | torch.OutOfMemoryError) else "failed"
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if not (folder / "done").exists():
            write_result(folder, WorkerResult(status=status, reason=reason))
        return EXIT_FAILED
    return EXIT_OK


def run_rank(folder: Path, comm: Communicator) -> None:
    """One rank's whole life; rank 0 leaves the result once all have come through."""
    job = Job.open(folder, comm)
    SCENARIOS[job.cell.scenario](job)
    job.ranks.barrier()
    if job.leads:
        job.finish()


def end_with_the_runner() -> None:
    """Exit when standard input ends: the runner holds the pipe, so even its kill -9 leaves no orphan."""

    def wait() -> None:
        try:
            while os.read(0, 1):
                pass
        except OSError:
            pass  # No standard input at all: there is no runner to outlive.
        else:
            os._exit(EXIT_FAILED)

    if not os.isatty(0):
        threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
