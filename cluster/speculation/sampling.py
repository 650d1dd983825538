"""The sampling transforms: from logits to the distribution that a law must reproduce."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Nucleus truncation rarely needs more than this many sorted tokens; a row that does is sorted whole.
_NUCLEUS_PREFIX = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's sampling parameters; the defaults leave the model's distribution as it is.

    temperature: >= 0, 0 is greedy; top_k: >= 0, 0 keeps all; top_p: (0, 1]; min_p: [0, 1).
    Raises ValueError, naming the field, when out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

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


def target_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Next-token distributions after all transforms.

    logits: float32 [rows, V]. Returns float32 [rows, V], each row summing to 1. Each row depends on
    its own logits alone, bit for bit. Order: temperature, top_k, top_p, min_p, as in transformers.
    """
    if sampling.temperature == 0.0:
        return _greedy(logits)
    # Subtracting the maximum first keeps tiny temperatures finite; below float32's range they would be 0.
    temperature = max(sampling.temperature, torch.finfo(torch.float32).tiny)
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        kth = torch.topk(scaled, sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    if sampling.top_p < 1.0:
        scaled = scaled.masked_fill(scaled < _nucleus_edge(scaled, sampling.top_p), float("-inf"))
    if sampling.min_p > 0.0:
        # p >= min_p * max p, said of exponents: the maximum sits at 0.
        probs = torch.softmax(scaled, dim=-1)
        edge = sampling.min_p * probs.max(dim=-1, keepdim=True).values
        scaled = scaled.masked_fill(probs < edge, float("-inf"))
    return torch.softmax(scaled, dim=-1)


def _greedy(logits: Tensor) -> Tensor:
    vocab = logits.shape[-1]
    top = logits.max(dim=-1, keepdim=True).values
    # argmax leaves open which of several maxima it returns.
    ids = torch.arange(vocab, device=logits.device).expand_as(logits)
    winner = torch.where(logits == top, ids, vocab).min(dim=-1, keepdim=True).values
    return torch.zeros_like(logits).scatter_(-1, winner, 1.0)


def _nucleus_edge(scaled: Tensor, top_p: float) -> Tensor:
    """The smallest scaled logit inside each row's nucleus: [rows, 1]; ties at the edge stay in."""
    probs = torch.softmax(scaled, dim=-1)
    edges = []
    for row, weights in zip(scaled, probs, strict=True):
        head = torch.topk(weights, min(_NUCLEUS_PREFIX, weights.shape[0])).values
        if float(head.double().sum()) < top_p:
            head = weights.sort(descending=True).values
        before = head.double().cumsum(0) - head.double()
        edge = head[before < top_p][-1]
        edges.append(row[weights >= edge].min())
    return torch.stack(edges)[:, None]
