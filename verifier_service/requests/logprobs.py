"""Log-probabilities of emitted tokens under the model itself."""

from __future__ import annotations

import torch
from torch import Tensor

from cluster.speculation.messages import Verdict
from cluster.speculation.request import TokenLogprob


def logprobs_of(logits: Tensor, verdict: Verdict, top: int) -> tuple[TokenLogprob, ...]:
    """One for each of the verdict's tokens, from the row that decided it.

    logits: float32 [N+1, V], as the model gave them; top: alternatives told with each, 0 for none.
    """
    path = range(verdict.accepted) if verdict.path is None else verdict.path
    deciding = [0, *(node + 1 for node in path)]
    rows = torch.log_softmax(logits[deciding].double(), dim=-1)
    best = torch.topk(rows, min(top, rows.shape[-1]), dim=-1)
    return tuple(
        TokenLogprob(token, float(row[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
        for token, row, values, ids in zip(verdict.tokens, rows, best.values, best.indices, strict=True)
    )
