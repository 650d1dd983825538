"""The sampling transforms: from logits to the distribution that a law must reproduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cluster.kernels.softmax import distributions

# A set of given probability rarely needs more than this many sorted tokens; a row that does is sorted whole.
_PREFIX = 1024
_FLOAT = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's sampling parameters; the defaults leave the model's distribution as it is.

    temperature: >= 0, 0 is greedy; top_k: >= 0, 0 keeps all; top_p, typical_p: (0, 1]; min_p, eta_cutoff:
    [0, 1). Raises ValueError, naming the field, when out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    eta_cutoff: float = 0.0

    def __post_init__(self) -> None:
        # Written so that NaN fails each of them.
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, got {self.temperature:g}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p:g}")
        if not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"min_p must be at least 0 and below 1, got {self.min_p:g}")
        if not 0.0 < self.typical_p <= 1.0:
            raise ValueError(f"typical_p must be above 0 and at most 1, got {self.typical_p:g}")
        if not 0.0 <= self.eta_cutoff < 1.0:
            raise ValueError(f"eta_cutoff must be at least 0 and below 1, got {self.eta_cutoff:g}")


def target_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Next-token distributions after all transforms.

    logits: float32 [rows, V]. Returns float32 [rows, V], each row summing to 1. Each row depends on
    its own logits alone, bit for bit. Order: temperature, top_k, top_p, min_p, typical_p, eta_cutoff, each
    on what the one before it left, as in transformers; at an edge, equals stay in together.

    typical_p: locally typical sampling, Meister et al. (arXiv 2202.00666); eta_cutoff: eta sampling, Hewitt
    et al. (arXiv 2210.15191).
    """
    if _compiled(logits) and _only_temperature(sampling):
        [probs] = _distributions([(logits, sampling)])
        return probs
    if sampling.temperature == 0.0:
        return _greedy(logits)
    # Subtracting the maximum first keeps tiny temperatures finite.
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / _temperature(sampling)
    if 0 < sampling.top_k < scaled.shape[-1]:
        kth = torch.topk(scaled, sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    probs = torch.softmax(scaled, dim=-1)
    if sampling.top_p < 1.0:
        edges = [-covering_edge(-row, row, sampling.top_p) for row in probs]
        probs = _cut(scaled, probs < torch.stack(edges)[:, None])
    if sampling.min_p > 0.0:
        probs = _cut(scaled, probs < sampling.min_p * probs.max(dim=-1, keepdim=True).values)
    if sampling.typical_p < 1.0:
        kept = []
        for row in probs:
            strangeness = (surprise(row) - entropy(row)).abs()
            kept.append(strangeness <= covering_edge(strangeness, row, sampling.typical_p))
        probs = _cut(scaled, ~torch.stack(kept))
    if sampling.eta_cutoff > 0.0:
        edges = [eta_edge(row, sampling.eta_cutoff) for row in probs]
        probs = _cut(scaled, probs < torch.stack(edges)[:, None])
    return probs


def target_probs_together(asked: Sequence[tuple[Tensor, Sampling]]) -> list[Tensor]:
    """`target_probs` of several, in order: the same rows, for less where nothing but a temperature is asked.

    Their logits are of one vocabulary.
    """
    plain = [_compiled(logits) and _only_temperature(sampling) for logits, sampling in asked]
    together = iter(_distributions([each for each, fits in zip(asked, plain, strict=True) if fits]))
    return [next(together) if fits else target_probs(*each) for each, fits in zip(asked, plain, strict=True)]


def _compiled(logits: Tensor) -> bool:
    """Whether our own kernels take them."""
    return logits.device.type == "cpu" and logits.dtype == torch.float32


def _only_temperature(sampling: Sampling) -> bool:
    return sampling.temperature == 0.0 or sampling == Sampling(temperature=sampling.temperature)


def _temperature(sampling: Sampling) -> float:
    """Beyond float32's range it would be 0 or infinite."""
    return min(max(sampling.temperature, _FLOAT.tiny), _FLOAT.max)


def _distributions(asked: Sequence[tuple[Tensor, Sampling]]) -> list[Tensor]:
    """Of rows that nothing but a temperature changes."""
    if not asked:
        return []
    rows = [logits.contiguous() for logits, _ in asked]
    counts = [len(logits) for logits in rows]
    given = [_temperature(sampling) if sampling.temperature else 0.0 for _, sampling in asked]
    probs = torch.empty(sum(counts), rows[0].shape[-1])
    distributions(_addresses(rows), np.repeat(np.array(given, np.float32), counts), probs.numpy())
    return list(probs.split(counts))


def _addresses(rows: Sequence[Tensor]) -> NDArray[np.int64]:
    """Of every row of several contiguous [rows, V]."""
    return np.array(
        [logits.data_ptr() + row * logits.stride(0) * 4 for logits in rows for row in range(len(logits))],
        np.int64,
    )


def _cut(scaled: Tensor, out: Tensor) -> Tensor:
    """Leaves out the tokens at `out`, in place; returns the probabilities of the others."""
    return torch.softmax(scaled.masked_fill_(out, float("-inf")), dim=-1)


def surprise(row: Tensor) -> Tensor:
    """-log p in nats, float64 [V]; infinite where p is 0."""
    return -row.double().log()


def entropy(row: Tensor) -> Tensor:
    """-Σ p log p in nats, float64, of a row [V]: summed row by row, since a sum over rows together may be
    split in another way and end in other bits."""
    p = row.double()
    return -p.xlogy(p).sum()


def eta_edge(row: Tensor, eta_cutoff: float) -> Tensor:
    """The least probability that eta sampling keeps, float64; at most the row's largest."""
    edge = (math.sqrt(eta_cutoff) * (-entropy(row)).exp()).clamp(max=eta_cutoff)
    # By rounding alone: the largest is at least e^(-entropy).
    return torch.minimum(edge, row.max().double())


def covering_edge(order: Tensor, weights: Tensor, mass: float) -> Tensor:
    """Of the tokens with the least `order`, as few as weigh `mass` together: the largest order among them.

    order, weights: [V]. Sums are in float64.
    """
    ordered, ids = torch.topk(order, min(_PREFIX, order.shape[0]), largest=False)
    if float(weights[ids].double().sum()) < mass:
        ordered, ids = order.sort()
    ahead = weights[ids].double()
    before = ahead.cumsum(0) - ahead
    return ordered[before < mass][-1]


def _greedy(logits: Tensor) -> Tensor:
    vocab = logits.shape[-1]
    top = logits.max(dim=-1, keepdim=True).values
    # argmax leaves open which of several maxima it returns.
    ids = torch.arange(vocab, device=logits.device).expand_as(logits)
    winner = torch.where(logits == top, ids, vocab).min(dim=-1, keepdim=True).values
    return torch.zeros_like(logits).scatter_(-1, winner, 1.0)
