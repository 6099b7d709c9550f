"""What a suite becomes: cells, each one resolved point. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from strategies.training.config import Training


class Frozen(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _as_tuple(value: Any) -> Any:
    """A list where a tuple belongs: strict validation would refuse it behind a model's own validator."""
    return tuple(value) if isinstance(value, list) else value


class SceneSpec(Frozen):
    """Which scene: exactly one of `city` (a preset of the procedural city) and `path` (a folder of photographs).

    A plain string stands for `path`.
    """

    city: str | None = None
    path: str | None = None
    """COLMAP folder (images/, sparse/0/) or one with transforms.json."""
    model: str | None = None
    """A Gaussian PLY whose Gaussians take the place of the scene's own."""
    gaussians: int | None = Field(None, ge=1)
    """City: number of ready Gaussians (throughput). Photographs: at most so many initial points are kept."""
    points: int | None = Field(None, ge=1)
    """Initial points from which training starts. Photographs: fewer than the scene has are chosen evenly, for more
    each of its own is joined by copies scattered around it."""
    views: int | None = Field(None, ge=2)
    """City: number of cameras; photographs: at most so many are used, evenly spaced."""
    seed: int = Field(0, ge=0)
    far: float | None = Field(None, gt=0)
    """City: distance beyond which a camera sees nothing, metres; changes the visible share."""
    tile: Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], BeforeValidator(_as_tuple)] = (
        1,
        1,
    )
    """Repeat the scene so many times along its two horizontal axes."""
    tile_views: Literal["every", "once"] = "every"
    """Views of a repeated scene: those of every copy, or each view once, in copies spread over the grid."""
    camera_side: float | None = Field(None, gt=0)
    """Anchor city: side of the square above which its cameras stand, metres; null: it grows with the Gaussians."""
    fill: bool = False
    """Photographs: brought to exactly `size`, enlarged where they must be, and cropped; for timing at that size."""
    optional: bool = False
    """The folder may be missing: cells on it are skipped then, with that reason."""
    stand_in: bool = False
    """A CPU-size scene in the place of a larger one; reports mark it, the cell's id leaves it out."""

    @model_validator(mode="before")
    @classmethod
    def _path_shorthand(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> SceneSpec:
        if (self.city is None) == (self.path is None):
            raise ValueError("a scene needs exactly one of 'city' and 'path'")
        return self


class Stop(Frozen):
    """When a series of passes ends. noise: relative, of the median pass. max_seconds: hard cap, measuring alone."""

    noise: float = Field(0.01, gt=0)
    min_passes: int = Field(10, ge=1)
    max_seconds: float = Field(60.0, gt=0)


class Cell(Frozen):
    """One resolved point of a suite: everything that decides what runs, and nothing else."""

    suite: str
    name: str | None = None
    """Of the case or ladder step; None for a point of the axes' product."""
    scenario: Literal["train", "throughput", "render", "kernels", "updates"] = "throughput"
    strategy: str = "single"
    options: dict[str, Any] = Field(default_factory=dict)
    """The strategy's own, validated by its model; canonical: only those that differ from its defaults."""
    ranks: int = Field(1, ge=1)
    device: Literal["cpu", "cuda", "auto"] = "auto"
    engine: str = "auto"
    link: str = Field("native", pattern=r"^(native|host|paced:(0\.[0-9]*[1-9]|[1-9][0-9]*(\.[0-9]+)?))$")
    """How ranks' data travels: as the machine does it best, through host memory, or held to so many GB/s each way."""
    kernels: Literal["auto", "reference", "portable", "compiled"] = "auto"
    precision: Literal["float32", "float64"] = "float32"
    threads: int = Field(1, ge=1)
    """CPU threads a rank's operators may use."""
    scene: SceneSpec = SceneSpec(city="small_street")
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = (1920, 1080)
    """Pixels: of the city's images; photographs are reduced to fit inside, keeping their shape. null: as they are."""
    batch: int = Field(1, ge=1)
    """Views a step, over all ranks."""
    images: int = Field(1000, ge=1)
    """train: images to train on."""
    evaluations: int = Field(4, ge=1)
    """train: times that held-out quality is measured after the start, evenly spaced, the last at the end."""
    seed: int = Field(0, ge=0)
    from_: str | None = Field(None, alias="from")
    """Name of a `prepare` entry whose trained Gaussians replace the scene's; in a plan, its cell_id."""
    timeout: float = Field(1800.0, gt=0)
    """Seconds until a cell that has not ended is ended as `timeout`."""
    collective_timeout: float = Field(120.0, gt=0)
    """Seconds that a rank waits for the others in one collective, before the cell is ended as `timeout`."""
    deterministic: bool = False
    """Two runs on one machine end with the same bits, and the record has the hash of their Gaussians; series of passes
    are `stop.min_passes` long. A cell that cannot is skipped."""
    debug: bool = False
    """Compare what ranks send with what others expect before each exchange: for a strategy that hangs. Costs time."""
    training: Training = Training()
    repeats: int = Field(3, ge=1)
    stop: Stop = Stop()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def paced_rate(link: str) -> float | None:
    """Bytes a second, each way, of a cell's `link: paced:<GB/s>`; None for the other links."""
    kind, _, rate = link.partition(":")
    return float(rate) * 1e9 if kind == "paced" else None
