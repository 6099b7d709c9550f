"""Pictures queued before their rooms are known to suffice: in order, each right when it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cuda_src.operators import Bins, Room, Splats
from strategies.training import late_pictures
from strategies.training.late_pictures import LatePictures

CPU = torch.device("cpu")
EMPTY = torch.zeros(0, dtype=torch.int64)


@dataclass
class Drawing:
    """Cameras are letters. What each needs; a picture is 0 if its room was too small, else what it needs."""

    needs: dict[str, tuple[int, int]]
    ties: set[str] = field(default_factory=set)
    with_rooms: bool = True
    drawn: list[tuple[str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.late = LatePictures(CPU, self.draw, self.with_rooms)

    def draw(self, camera: str, room: Room | None):
        self.drawn.append((camera, room is not None))
        splats, instances = self.needs[camera]
        picture, needed = torch.tensor([splats, instances]), None
        if room is not None:
            if splats > room.splats or instances > room.instances or camera in self.ties:
                room.overflow.fill_(1)
            if room.overflow:
                picture = picture * 0
            needed = torch.tensor([splats, 0, instances, int(room.overflow)])
        of_size = torch.zeros(splats, dtype=torch.int64)
        bins = Bins(EMPTY, EMPTY, torch.zeros(instances, dtype=torch.int32), None, None, needed)
        return picture, Splats(of_size, of_size, of_size), bins

    def given(self, cameras: str) -> list[tuple[int, ...]]:
        return [tuple(picture.tolist()) for picture in self.late.of(cameras)]

    def right(self, cameras: str) -> list[tuple[int, int]]:
        return [self.needs[camera] for camera in cameras]


def test_first_pictures_are_exact_and_later_ones_have_rooms():
    drawing = Drawing({"a": (10, 20), "b": (30, 40)})
    assert drawing.given("abab") == drawing.right("abab")
    assert drawing.drawn == [("a", False), ("b", False), ("a", True), ("b", True)]


def test_the_next_picture_is_begun_before_one_is_given_and_not_the_one_after():
    drawing = Drawing({"a": (10, 20), "b": (30, 40), "c": (1, 2)})
    pictures = drawing.late.of("abc")
    next(pictures)
    assert [camera for camera, _ in drawing.drawn] == ["a", "b"]


@pytest.mark.parametrize("need", [(9000, 20), (10, 9000)])
@pytest.mark.parametrize("of", ["a", "b", "c"])
def test_a_picture_that_outgrew_its_room_is_drawn_again_alone_and_then_has_room(need, of):
    drawing = Drawing({"a": (10, 20), "b": (30, 40), "c": (1, 2)})
    drawing.given("abc")
    drawing.needs[of] = need
    drawing.drawn.clear()
    assert drawing.given("abc") == drawing.right("abc")
    assert [camera for camera, roomy in drawing.drawn if not roomy] == [of]
    drawing.drawn.clear()
    assert drawing.given("abc") == drawing.right("abc")
    assert all(roomy for _, roomy in drawing.drawn)


def test_two_that_outgrew_their_rooms_in_a_row_are_both_drawn_again():
    drawing = Drawing({"a": (10, 20), "b": (30, 40)})
    drawing.given("ab")
    drawing.needs = {"a": (9000, 20), "b": (30, 9000)}
    assert drawing.given("ab") == drawing.right("ab")


def test_one_with_too_many_equal_depths_stays_exact():
    drawing = Drawing({"a": (10, 20), "b": (30, 40)}, ties={"a"})
    for _ in range(3):
        assert drawing.given("ab") == drawing.right("ab")
    assert drawing.drawn[-2:] == [("a", False), ("b", True)]


def test_pictures_that_nobody_took_leave_nothing_behind():
    drawing = Drawing({"a": (10, 20), "b": (30, 40)})
    drawing.given("ab")
    drawing.needs["b"] = 9000, 9000
    next(drawing.late.of("ab"))  # b has set the flag, and is never looked at.
    assert drawing.given("aab") == drawing.right("aab")


def test_others_gaussians_have_no_rooms():
    drawing = Drawing({"a": (10, 20)})
    drawing.given("aa")
    drawing.late.forget()
    drawing.given("a")
    assert drawing.drawn[-1] == ("a", False)


def test_a_viewers_cameras_are_forgotten(monkeypatch):
    monkeypatch.setattr(late_pictures, "MOST_CAMERAS", 3)
    drawing = Drawing(dict.fromkeys("abcd", (1, 2)))
    drawing.given("abc")
    drawing.given("abc")
    assert all(roomy for _, roomy in drawing.drawn[3:])
    drawing.given("da")
    assert drawing.drawn[-1] == ("a", False)


def test_kernels_without_rooms_draw_exactly():
    drawing = Drawing({"a": (10, 20)}, with_rooms=False)
    assert drawing.given("aaa") == drawing.right("aaa")
    assert not any(roomy for _, roomy in drawing.drawn)
