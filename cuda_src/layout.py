"""Columns of a Gaussian's parameters, of a splat record and of its gradient.

This file and the kernels own the physical layout; everything else goes through these names.
"""

from __future__ import annotations

SH_COEFFICIENTS = 16

MEAN = slice(0, 3)
LOG_SCALE = slice(3, 6)
QUATERNION = slice(6, 10)
"""w x y z, need not be of unit length; a zero quaternion is read as the identity."""
OPACITY_LOGIT = 10
SH_DC = slice(11, 14)
SH_REST = slice(14, 59)
"""15 coefficients x 3 colours, coefficient-major: column 14 + 3 (k - 1) + colour for coefficient k >= 1."""
SH = slice(11, 59)

PARAMETERS = 59
"""float32 of a Gaussian: mean 3, log-scale 3, quaternion 4, opacity logit 1, SH 16 x 3."""

PARAMETER_GROUPS = {
    "mean": MEAN,
    "log_scale": LOG_SCALE,
    "quaternion": QUATERNION,
    "opacity": slice(OPACITY_LOGIT, OPACITY_LOGIT + 1),
    "sh_dc": SH_DC,
    "sh_rest": SH_REST,
}

# A splat: one Gaussian as one view sees it. The first nine columns carry gradients and cross the wire both ways
# (36 B); depth and radius go forward only (8 B), as in Grendel's exchange.
RECORD_MEAN2D = slice(0, 2)
RECORD_CONIC = slice(2, 5)
"""Inverse of the dilated 2-D covariance: xx, xy, yy."""
RECORD_OPACITY = 5
RECORD_COLOUR = slice(6, 9)
RECORD_DEPTH = 9
RECORD_RADIUS = 10
"""3 sigma of the longer axis, pixels, rounded up: the half side of `footprint: square`."""
RECORD = 11
RECORD_STRIDE = 12
"""Floats from one record to the next where kernels read them as three 16-byte words."""
RECORD_ID = 11
"""The last of these, in records that a rank was sent: the 32 bits of its Gaussian's id."""

GRADIENT = 10
"""A splat's gradient: columns 0-8 as in the record, column 9 the depth's."""
GRADIENT_STRIDE = 12
"""Floats from one gradient to the next where kernels add to them in 16-byte words."""

ACCUMULATOR_STRIDE = 16
"""Floats from one accumulator of remote gradients to the next: reductions over a link are fastest on aligned 64 B."""

# What densification decides by, summed over the views of many steps.
GRADIENT_SUM = 0
"""Sum over views of |d loss / d mean2d|, the mean in normalised device units: the image is 2 wide and 2 high."""
VIEWS_SEEN = 1
LARGEST_RADIUS = 2
"""Largest record radius in any view, as a share of the image's longer side."""
STATISTICS = 3

GROUP = 32
"""Consecutive rows of a table that kernels handle together: a warp's."""
BOUND_LOWER = slice(0, 3)
BOUND_EXTENT = 3
BOUND_UPPER = slice(4, 7)
BOUND = 8
"""Floats of a group's bound, one sector of memory: a box around the means, the largest extent (see bounds.py), and one
that is not used."""
