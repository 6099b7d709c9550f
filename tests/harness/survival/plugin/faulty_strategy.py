"""Steps that compute nothing and exchange a number, until the fault strikes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from faulty_info import FaultyOptions

from cuda_src.camera import Camera
from strategies.base import Context, GaussianSource, ImageSource, Shard, ShardReader, StepReport, Strategy
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.views import ViewQueue

SLOW_SECONDS = 0.3
FOREVER = 600.0
MORE_THAN_A_GPU = 1 << 45
"""Bytes."""


class Faulty(Strategy):
    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, FaultyOptions)
        self.ctx, self.options = ctx, options
        ids = torch.arange(ctx.world.rank, source.count, ctx.world.ranks)
        self.gaussians = Gaussians.from_source(source, ids, ctx.world.devices[0], torch.float32)
        self._images_seen = 0

    def step(self, queue: ViewQueue) -> StepReport:
        queue.take(queue.peek(self.ctx.batch))
        loss = torch.tensor(1.0 / self.ctx.world.ranks)
        with self.ctx.clock("compute"):
            if self._struck():
                loss = self._fail(loss)
        with self.ctx.clock("exchange"):
            self._exchange(loss)
        self._images_seen += self.ctx.batch
        return StepReport(self.ctx.batch, 1, loss, 1, 1)

    def render(self, camera: Camera) -> torch.Tensor | None:
        if self.ctx.world.rank != 0:
            return None
        return torch.zeros(camera.height, camera.width, 3, device=self.ctx.world.devices[0])

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        self.gaussians = Gaussians.from_reader(reader, self.ctx.world.devices[0], torch.float32)

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [self.gaussians.bytes]

    def _exchange(self, loss: torch.Tensor) -> None:
        device = self.ctx.world.devices[0]
        if device.type == "cpu":
            self.ctx.comm.reduce("exchange", loss)
            return
        ones = [1] * self.ctx.world.ranks
        self.ctx.comm.exchange("exchange", loss.expand(len(ones)).to(device), ones, ones).wait()
        torch.cuda.synchronize(device)  # Only here does the host notice that a peer is missing.

    def _struck(self) -> bool:
        options = self.options
        now = self._images_seen == options.step * self.ctx.batch and self.ctx.world.rank == options.rank
        if not now or options.fault == "none" or (options.once and Path(options.once).exists()):
            return False
        if options.once:
            Path(options.once).touch()
        return True

    def _fail(self, loss: torch.Tensor) -> torch.Tensor:
        match self.options.fault:
            case "raise":
                raise ValueError("no such colour")
            case "memory":
                raise MemoryError("Unable to allocate 8.00 TiB")
            case "device_memory":
                torch.empty(MORE_THAN_A_GPU, dtype=torch.uint8, device=self.ctx.world.devices[0])
            case "nan":
                return loss * float("nan")
            case "hang":
                time.sleep(FOREVER)
            case "slow":
                time.sleep(SLOW_SECONDS)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill_parent":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(FOREVER)
            case "fill":
                fill(Path(self.options.fill))
        return loss


def fill(path: Path) -> None:
    """Take all room that is left on the path's disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return
