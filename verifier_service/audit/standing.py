"""Where a token stands in its row, in one pass over the row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster.kernels import compiled
from cluster.kernels.elementwise import REORDERED


@compiled(fastmath=REORDERED)
def standing(row: npt.NDArray[np.float32], own: np.float32) -> tuple[float, int]:
    """The probability of the tokens that are more probable than `own`, and how many are exactly as probable.

    row: [V], of finite numbers.
    """
    before, tied = 0.0, 0
    for k in range(row.shape[0]):
        probability = row[k]
        before += float(probability) if probability > own else 0.0
        tied += 1 if probability == own else 0
    return before, tied


# Compiled, or read from the cache, before the first request.
standing(np.ones(1, np.float32), np.float32(1))
