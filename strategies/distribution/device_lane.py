"""The stream beside the computation on which a GPU's exchanges run, and the events that time them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import torch

RECORDED = 40
"""Exchanges whose end the flight recorder knows, the last ones."""
SETTLED_AT = 64
"""Exchanges kept before those that are over are added up, and their events recorded again by others."""
WATCH_SECONDS = 0.5
_CALIBRATION_CYCLES = 50_000_000
_WARM_UP_CYCLES = 400_000_000
"""A fifth of a second, in which an idle GPU reaches its clock."""


@dataclass(frozen=True)
class Tally:
    """Where the seconds of an exchange are added: two dictionaries, under the stage's name."""

    stage: str
    exposed: dict[str, float]
    hidden: dict[str, float]

    def add(self, waited: float, took: float) -> None:
        """waited: seconds that the computation stood still for it. took: seconds from its begin to its end.

        Where two exchanges of a stage follow one another on the lane, who waits for the second stands still for both:
        what is hidden of one alone may be less than nothing, of both together it is right.
        """
        self.exposed[self.stage] = self.exposed.get(self.stage, 0.0) + waited
        self.hidden[self.stage] = self.hidden.get(self.stage, 0.0) + took - waited


@dataclass
class Crossing:
    """One exchange and the events between which it ran. size: bytes, the larger of those out and those in. queued:
    whether all of it is, its end included. counted: its seconds are known, and its events may be another's by now."""

    tally: Tally
    size: int
    began: torch.cuda.Event
    ended: torch.cuda.Event
    queued: bool = False
    counted: bool = False

    @property
    def over(self) -> bool:
        return self.counted or (self.queued and self.ended.query())

    @property
    def event(self) -> dict[str, str | int]:
        """For the flight recorder: its stage, its bytes, and how far the device has come with it."""
        state = "over" if self.over else "begun" if self.began.query() else "queued"
        return {"stage": self.tally.stage, "bytes": self.size, "state": state}


class Mark:
    """The computation queued up to a moment, which one crossing waits for. Made anew when a tape is played."""

    def __init__(self) -> None:
        self.event: torch.cuda.Event | None = None


@dataclass(frozen=True)
class Wait:
    """The events between which the computation stood still, and the exchange it did so for; without one nothing ran
    beside it, and with one of the same events nothing could.

    beside: when what ran beside the computation came to the wait; it may resume before the computation is so far."""

    tally: Tally
    asked: torch.cuda.Event
    resumed: torch.cuda.Event
    crossing: Crossing | None = None
    beside: torch.cuda.Event | None = None

    @property
    def events(self) -> list[torch.cuda.Event]:
        one = self.crossing
        of_crossing = [] if one is None or one.began is self.asked else [one.began, one.ended]
        return [self.asked, self.resumed, *of_crossing, *([] if self.beside is None else [self.beside])]

    @property
    def ends(self) -> list[torch.cuda.Event]:
        """When the device has come to these it has come to all of `events`."""
        return [self.resumed] if self.beside is None else [self.resumed, self.asked]

    @property
    def seconds(self) -> float:
        """For which all stood still."""
        waited = _seconds(self.asked, self.resumed)
        return waited if self.beside is None else max(0.0, min(waited, _seconds(self.beside, self.resumed)))


class DeviceLane:
    """Exchanges wait for the computation that was queued before them, run beside what is queued after them, and hold
    only those up who `join` them. Nothing here makes the host wait but `settle`.

    pace: bytes a second that exchanges are held to, by a kernel that spins on one multiprocessor. An exchange that has
    begun and does not end for `timeout` seconds is told to on_silence, once, by its stage, from another thread.
    """

    def __init__(
        self, device: torch.device, timeout: float, on_silence: Callable[[str], None], pace: float | None = None
    ):
        self._device, self._timeout, self._on_silence, self._pace = device, timeout, on_silence, pace
        # Records wait for nobody's multiprocessors: what is exchanged holds up other ranks.
        self.stream = torch.cuda.Stream(device, priority=-1)
        """Where what crosses is queued, between `begin` and `end`."""
        # Asked once: the answer takes longer than the event it is for.
        self._compute = torch.cuda.current_stream(device)
        self._beside = torch.cuda.Stream(device)
        self._joining = self._compute
        """What waits for exchanges: the computation, or what goes on beside it."""
        self._pacer = torch.cuda.Stream(device)
        self._cycles = 0.0 if pace is None else cycles_per_second(device)
        self._waits: deque[Wait] = deque()
        # To be recorded again: to make and to free one are calls of the driver too.
        self._idle: list[torch.cuda.Event] = []
        self._watched: deque[Crossing] = deque()
        self._recorded: deque[Crossing] = deque(maxlen=RECORDED)
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="exchange watch", daemon=True).start()

    def mark(self) -> torch.cuda.Event:
        """The computation queued so far, for one crossing to wait for."""
        return self._mark(self._compute)

    def begin(self, tally: Tally, size: int, after: torch.cuda.Event | None = None) -> Crossing:
        """From here to `end`, what is queued on `stream` is one exchange. size: as of `Crossing`. after: from `mark`,
        the computation that it waits for; None: all that is queued."""
        after = after or self.mark()
        self.stream.wait_event(after)
        self._idle.append(after)  # The stream waits for what it was recorded behind, whatever becomes of it now.
        one = Crossing(tally, size, self._mark(self.stream), self._event())
        self._recorded.append(one)
        self._begin_pace(size, one.began)
        return one

    def end(self, one: Crossing) -> None:
        self._end_pace(self.stream)
        one.ended.record(self.stream)
        one.queued = True
        self._watched.append(one)

    @contextmanager
    def inline(self, tally: Tally, size: int) -> Iterator[None]:
        """Inside, an exchange is queued on the computation's own stream, which stands still for it; the host may wait
        there for what comes."""
        compute = self._compute
        one = Crossing(tally, size, self._mark(compute), self._event())
        self._recorded.append(one)
        self._watched.append(one)
        self._begin_pace(size, one.began)
        yield
        self._end_pace(compute)
        one.ended.record(compute)
        one.queued = True
        self._keep(Wait(tally, one.began, one.ended, one))

    def join(self, one: Crossing) -> None:
        """What is queued from here on waits for the exchange: the computation, or what goes on beside it."""
        asked, joining = self._mark(self._compute), self._joining
        beside = None if joining is self._compute else self._mark(joining)
        joining.wait_event(one.ended)
        self._keep(Wait(one.tally, asked, self._mark(joining), one, beside))

    def go_beside(self, after: torch.cuda.Event) -> None:
        """From here to `come_back`, what this thread queues runs beside the computation, behind what that had come to
        at `after`, of `mark`."""
        self._beside.wait_event(after)
        self._idle.append(after)
        self._joining = self._beside
        torch.cuda.set_stream(self._beside)

    def come_back(self) -> None:
        """The computation queued from here on waits for what went on beside it."""
        torch.cuda.set_stream(self._compute)
        self._joining = self._compute
        ended = self._mark(self._beside)
        self._compute.wait_event(ended)
        self._idle.append(ended)

    @contextmanager
    def standstill(self, tally: Tally) -> Iterator[None]:
        """Inside, the host waits for something that it needs to go on; the computation's stream runs dry meanwhile, or
        does not. What that took beside the computation is not known: it was waiting for the device itself."""
        compute = self._compute
        asked = self._mark(compute)
        yield
        self._keep(Wait(tally, asked, self._mark(compute)))

    def settle(self) -> None:
        """Add up the seconds of every exchange that was waited for; waits for the device."""
        self._add_up(wait=True)

    def events(self) -> list[dict[str, str | int]]:
        """The last exchanges, as the flight recorder has them."""
        return [one.event for one in list(self._recorded)]  # A copy: it is another thread that asks.

    def close(self) -> None:
        self._closed.set()

    def _begin_pace(self, size: int, began: torch.cuda.Event) -> None:
        """What is queued from here on, until `_end_pace`, ends no earlier than so many bytes after `began` allow."""
        if self._pace is None:
            return
        self._pacer.wait_event(began)
        with torch.cuda.stream(self._pacer):
            torch.cuda._sleep(int(size / self._pace * self._cycles))

    def _end_pace(self, stream: torch.cuda.Stream) -> None:
        if self._pace is not None:
            stream.wait_stream(self._pacer)

    def _event(self) -> torch.cuda.Event:
        return self._idle.pop() if self._idle else torch.cuda.Event(enable_timing=True)

    def _mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = self._event()
        event.record(stream)
        return event

    def _keep(self, one: Wait) -> None:
        self._waits.append(one)
        if len(self._waits) > SETTLED_AT:
            self._add_up(wait=False)

    def _add_up(self, wait: bool) -> None:
        while self._waits:
            one = self._waits[0]
            if wait:
                for event in one.ends:
                    event.synchronize()
            elif not all(event.query() for event in one.ends):
                return
            waited = one.seconds
            took = waited if one.crossing is None else _seconds(one.crossing.began, one.crossing.ended)
            one.tally.add(waited, took)
            if one.crossing is not None:
                one.crossing.counted = True
            self._idle += one.events
            self._waits.popleft()

    def _watch(self) -> None:
        """Follow the oldest exchange under way; its time runs from when the device has come to it."""
        torch.cuda.set_device(self._device)
        current, since = None, 0.0
        while not self._closed.wait(WATCH_SECONDS):
            try:
                while self._watched and self._watched[0].over:
                    self._watched.popleft()
                oldest = self._watched[0] if self._watched else None
                begun = oldest is not None and oldest.began.query()
            except RuntimeError:  # The device failed, which the rank itself will say.
                return
            if oldest is None or not begun:
                current = None
            elif oldest is not current:
                current, since = oldest, monotonic()
            elif monotonic() - since > self._timeout:
                self._on_silence(oldest.tally.stage)
                return


def cycles_per_second(device: torch.device) -> float:
    """Clock of the counter by which a spinning kernel waits, measured on the device when it is warm."""
    torch.cuda._sleep(_WARM_UP_CYCLES)
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.current_stream(device)
    began.record(stream)
    torch.cuda._sleep(_CALIBRATION_CYCLES)
    ended.record(stream)
    ended.synchronize()
    return _CALIBRATION_CYCLES / _seconds(began, ended)


def _seconds(began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
    return began.elapsed_time(ended) * 1e-3
