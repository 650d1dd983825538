"""What the statistical tests share."""

from __future__ import annotations

import torch
from scipy.stats import chisquare

# A correct sampler fails a test at this level once in a million seeds, and the seeds are fixed.
ALPHA = 1e-6


def p_value(outcomes: list[int], law: torch.Tensor) -> float:
    """χ² p-value of category counts against a law; all mass must lie on the law's support."""
    counts = torch.bincount(torch.tensor(outcomes), minlength=law.shape[0])
    if bool(counts[law == 0].sum()):
        return 0.0
    support = law > 0
    expected = law[support].double() / law[support].double().sum() * len(outcomes)
    assert float(expected.min()) >= 5, "χ² needs five expected draws a cell"
    return float(chisquare(counts[support].numpy(), expected.numpy()).pvalue)
