"""The standard normal distribution, with NumPy alone."""

from __future__ import annotations

import math

import numpy as np

# Wichura's AS 241 (1988), as in `statistics.NormalDist`: highest powers first, numerator and denominator, in the middle
# and in the tails.
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)  # fmt: skip
# Of the complementary error function, with a relative error below 1.2e-7 (Numerical Recipes, `erfcc`).
_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


def normal_scores(shares: np.ndarray) -> np.ndarray:
    """Return the quantiles of the distribution at shares from 1e-10 to 1 - 1e-10."""
    centered = shares - 0.5
    root = np.sqrt(-np.log(np.minimum(shares, 1.0 - shares))) - 1.6
    tail = np.polyval(_TAIL[0], root) / np.polyval(_TAIL[1], root)
    square = 0.180625 - centered * centered
    middle = centered * np.polyval(_MIDDLE[0], square) / np.polyval(_MIDDLE[1], square)
    return np.where(np.abs(centered) <= 0.425, middle, np.copysign(tail, centered))


def normal_shares(scores: np.ndarray) -> np.ndarray:
    """Return the share of the distribution below each score."""
    far = np.abs(scores) / math.sqrt(2.0)
    step = 1.0 / (1.0 + 0.5 * far)
    beyond = 0.5 * step * np.exp(-far * far + np.polyval(_ERFC, step))
    return np.asarray(np.where(scores > 0, 1.0 - beyond, beyond))
