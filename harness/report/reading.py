"""How to read the figures: what a time includes, what it leaves out, and what a mark means."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report.convergence import TOLERANCE_DB

_ALWAYS = [
    (
        "Time.",
        "A step takes as long as its slowest rank. It includes everything from projection to the optimizer's "
        "update, and what ranks exchange for it; it leaves out start-up, compilation, reading images, warm-up, "
        "evaluation and writing.",
    ),
    (
        "views/s",
        "are training views of the whole job a second, whatever the number of ranks or of views a step. A factor "
        "compares with single on one rank at the same scene, image size and batch; × gsplat with the fastest packed or "
        "dense row of that package on as many ranks and the same link, in the same run or, marked as such, in another "
        "of the same code and environment.",
    ),
]

_BY_SCENARIO = {
    "throughput": (
        "Throughput.",
        "A sample is one pass over a fixed list of views, the same for all strategies, with learning rates so "
        "small that the workload stays. Warm-up passes are left out: two, or as many as the strategy needs to settle. "
        "± is the relative noise of the median pass. Stages are timed in further passes, with a synchronisation each; "
        "their sum may differ from the step's time.",
    ),
    "train": (
        "Training.",
        "Rates are means over the whole run; the clock holds steps alone. Each stage is synchronised to be timed,"
        " which costs some speed where a device runs ahead of the host. PSNR and SSIM are means over held-out "
        "views, every 8th of the scene. A strategy's speed counts only beside its quality.",
    ),
    "render": (
        "Rendering.",
        "A sample is one pass over the training views: projection to raster, no loss, no gradient; views/s are images, "
        "and a step of the stages is one image. The image ends on the first rank's device, not on the host.",
    ),
    "kernels": (
        "Kernels.",
        "A time is one call on one view with the inputs it has in a step, operators one after another in a step's "
        "order, mean over views. Counted work comes from the tensors of each view: a warp evaluation is a splat that "
        "can be seen in a patch of 8 x 4 pixels, before all of these are done. 'must move' is what any kernel has to "
        "read or write once. Bound by issue: of some timed views warp instructions take longer than bytes. 'profiled' "
        "is one view, the one with the median number of instances, in a run of its own under Nsight Compute: time of "
        "the kernels alone, DRAM bytes, these over what this view must move and over that time, and warp instructions "
        "of those that the device can issue in it. What stays in a cache beats its floor. In brackets: operators that "
        "this step lacks. p50 and p99 are of single steps, each over the floor of its own view. The goals are those of "
        "20 million Gaussians.",
    ),
}

_BY_SECTION = {
    "scaling": (
        "Efficiency",
        "divides by the one-rank figure of the same strategy and settings; 'over single' divides by single's on one "
        "rank, which also shows what the strategy itself costs; weak efficiency, of as many views a step as ranks, "
        "divides by single's with one view. 'slowest / mean' compares the ranks' times from "
        "binning to the rasters' backward. GB/s a rank are what the busiest rank sends in a step's exchanges over the "
        "time these take, exposed and hidden; 'of the link' divides by what an exchange of known size reached in the "
        "same process, 'of all-to-all' compares the exchange, packing and unpacking included, with NCCL's own of the "
        "same counts. wire / ledger is what NVLink's counters saw leave over what was booked. More devices pay where "
        "they are faster together than single on one at the same batch; between two sizes the logarithms are taken to "
        "run straight.",
    ),
    "traffic": (
        "Traffic",
        "is what the strategy asked to be moved: payload is what a receiver computes with, metadata is counts, ids "
        "and padding. Bytes a view are those of a step over the views of a step, summed over all places.",
    ),
    "workload": (
        "Workload.",
        "Visible Gaussians have a footprint in a view; a tile instance is one of them on one tile; both are means of "
        "a view. Collectives are calls of a rank and step.",
    ),
    "growth": (
        "Exponent.",
        "Bytes grow as the fewest-to-most axis to this power, fitted to the logarithms: 1 is in proportion, 0 is "
        "no growth.",
    ),
}

_UNEQUAL = (
    "≠",
    f"marks the rate of a strategy whose held-out PSNR differs by more than {TOLERANCE_DB} dB from that of single at "
    "equal images seen: it is fast at something else. A cell that trains nothing is marked by those of its strategy "
    "and options that train.",
)

_MODELLED = {
    "virtual": (
        "Modelled, engine virtual:",
        "ranks took turns on one device, and the step is taken to last as long as its slowest rank's own computation. "
        "It shows how work divides, not what a link between devices costs.",
    ),
    "paced": (
        "Modelled, link paced:",
        "ranks ran side by side, and each exchange was held back until a link of that rate could have carried its "
        "bytes. Times are real but for that link.",
    ),
}

_MEMORY = (
    "Memory",
    "is the most that any one rank held; 'over mean' compares its tensors with the mean of the ranks. Peak tensors "
    "are parameters, optimizer moments and workspaces alone; peak memory is what the process or device held with "
    "everything else. 'beside tables' is peak memory of one GPU without parameters, moments and the images it keeps; "
    "'allowed' is 64 B a Gaussian and 200 B a pixel of a step's views, the bar from 20 million Gaussians on.",
)

_STATUS = (
    "Status.",
    "skipped: cannot run here, and why. invalid: it ran, but its figures break a rule of measuring. oom: out "
    "of memory. Only cells that ended ok are in plots and comparisons.",
)


def notes(
    scenarios: Iterable[str],
    modelled: Iterable[str],
    sections: Iterable[str],
    unequal: bool = False,
    remarks: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """(term, explanation) for what the report at hand shows. modelled: ways in which rates were, `virtual` or `paced`.
    sections: names of those it has. unequal: whether it marks a rate whose quality is not that of single. remarks: of
    strategies on how they ran."""
    scenarios, sections = list(scenarios), list(sections)
    chosen = [*_ALWAYS, *(_BY_SCENARIO[s] for s in _BY_SCENARIO if s in scenarios)]
    chosen += [_BY_SECTION[s] for s in _BY_SECTION if s in sections]
    chosen += [("Remark.", remark) for remark in remarks]
    chosen += [_UNEQUAL] if unequal else []
    return [*chosen, *(_MODELLED[kind] for kind in _MODELLED if kind in set(modelled)), _MEMORY, _STATUS]
