"""What `single` says of itself."""

from strategies.info import Options, StrategyInfo, never_varies


class SingleOptions(Options):
    """`single` has no mechanisms of its own: it is what the others are compared with."""


INFO = StrategyInfo(
    name="single",
    summary="one device, no exchange: the oracle for exactness and the baseline of every speed-up",
    options=SingleOptions,
    implementation="strategies.single.strategy:Single",
    max_ranks=1,
    exact_when="always: it is the definition",
    varies=never_varies,
)
