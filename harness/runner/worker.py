"""The process of a cell: `python -m harness.runner.worker FOLDER`, started by the runner, directly or by torchrun."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from harness.errors import EXIT_FAILED, EXIT_OK, UserError
from harness.records.schema import Status, WorkerResult
from harness.runner import scenario_kernels, scenario_render, scenario_throughput, scenario_train, scenario_updates
from harness.runner.flight_recorder import keep_recording
from harness.runner.job import Job, SharedScene
from harness.runner.lifeline import end_with_the_runner
from harness.runner.result import CELL, FAILING, is_out_of_memory, write_result
from harness.runner.whereabouts import Whereabouts
from harness.suite.cell import Cell, paced_rate
from harness.suite.feasibility import CUDA_ENGINES
from strategies.distribution.communicator import Communicator, LocalCommunicator, PeerFailedError, PeerSilentError
from strategies.distribution.gloo import GlooCommunicator
from strategies.distribution.nccl import NcclCommunicator, connect
from strategies.distribution.virtual import VirtualWorld

SCENARIOS: dict[str, Callable[[Job], object]] = {
    "train": scenario_train.run,
    "throughput": scenario_throughput.run,
    "render": scenario_render.run,
    "kernels": scenario_kernels.run,
    "updates": scenario_updates.run,
}


def main(folder: Path) -> int:
    """Run the cell described in the folder on this process's ranks; the exit code of this process."""
    end_with_the_runner()
    cell = Cell.model_validate(json.loads((folder / CELL).read_text())["cell"])
    try:
        if cell.engine == "virtual":
            shared = SharedScene()
            VirtualWorld(cell.ranks).run(lambda comm: run_rank(folder, comm, shared), cell.device)
        elif cell.engine == "local":
            run_rank(folder, LocalCommunicator(torch.device(cell.device), places=cell.ranks))
        elif cell.engine in CUDA_ENGINES:
            gpus = connect(cell.collective_timeout, paced_rate(cell.link), cell.engine == "symmetric")
            gpus.on_silence = partial(end_in_silence, folder, gpus)
            run_rank(folder, gpus)
            gpus.barrier()
            gpus.close()
            dist.destroy_process_group()
            gc.collect()
        else:
            dist.init_process_group("gloo", timeout=timedelta(seconds=cell.collective_timeout))
            run_rank(folder, GlooCommunicator())
            # gloo aborts processes that exit with a live group.
            dist.barrier()
            dist.destroy_process_group()
            gc.collect()
    except Exception as error:
        traceback.print_exc()
        leave_failure(folder, error)
        return EXIT_FAILED
    return EXIT_OK


def run_rank(folder: Path, comm: Communicator, shared: SharedScene | None = None) -> None:
    """One rank's whole life; rank 0 leaves the result once all have come through. shared: of ranks in one process."""
    whereabouts = Whereabouts(folder, comm.rank)
    comm.on_wait = whereabouts.wait
    try:
        job = Job.open(folder, comm, whereabouts, shared)
        comm.pace, comm.checks = paced_rate(job.cell.link), job.cell.debug
        SCENARIOS[job.cell.scenario](job)
        job.ranks.barrier()
        if job.leads:
            job.finish()
    except Exception as error:
        leave_failure(folder, error, str(whereabouts))
        raise


def leave_failure(folder: Path, error: Exception, where: str = "") -> None:
    """The error as the cell's result, unless another rank has left one, or it only follows from another rank's end."""
    if isinstance(error, PeerFailedError | PeerSilentError):
        return
    try:
        (folder / FAILING).touch(exist_ok=False)
    except FileExistsError:
        return
    text = f"{type(error).__name__}: {error}"
    status: Status = "oom" if isinstance(error, MemoryError) or is_out_of_memory(text) else "failed"
    reason = str(error) if isinstance(error, UserError) else f"{text} ({where})" if where else text
    write_result(folder, WorkerResult(status=status, reason=reason))


def end_in_silence(folder: Path, comm: NcclCommunicator, error: PeerSilentError) -> None:
    """End this process, whose own thread may wait for its GPU for ever; its flight recorder stays."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    try:
        keep_recording(folder, comm.rank, comm.last_exchanges())
    finally:
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    if code:
        # Ranks, threads and libraries that are stuck shall not keep a failed process from ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
