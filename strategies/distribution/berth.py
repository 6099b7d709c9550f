"""Where a passage with a room lies: known before its view is projected."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strategies.distribution.inbox import Inbox
from strategies.distribution.passage_rooms import PassageRoom


@dataclass(frozen=True)
class Berth:
    """inbox: where records come. whole: the rank that renders all of the view, where its records go there as they are
    projected; into: where they do, [n, RECORD], the room of that rank but for its last row."""

    room: PassageRoom
    inbox: Inbox
    whole: int | None = None
    into: torch.Tensor | None = None
