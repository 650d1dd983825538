"""The output laws of the lossy rules on dense rows, written from the papers, not from the shipped code."""

from __future__ import annotations

import math
from functools import cache

import torch


def cap(t, p, ceiling):
    kept = torch.minimum(t, torch.where(p > 0, ceiling * p, 0.0))
    short = (p - kept).clamp(min=0.0)
    missing = 1.0 - kept.sum()
    return kept + missing * short / short.sum() if float(short.sum()) > 0 else kept


def lenience(p, q, ell):
    """The three cases of arXiv 2607.26627, Δ the rejected mass over TV(p, q)."""
    distance = 0.5 * (p - q).abs().sum()
    delta = (q - torch.minimum(q, p / ell)).sum() / distance if float(distance) > 0 else torch.tensor(0.0)
    below = delta * p + (1.0 - delta) * q
    return torch.where(q <= p, below, torch.where(q <= p / ell, q, p / ell))


def interpolation(p, q, weight, ceiling):
    return cap(weight * p + (1.0 - weight) * q, p, ceiling)


def bisect(low, high, rises):
    """The last point at which `rises` is still false."""
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rises(middle) else (middle, high)
    return low


def clipped(p, q, ratio):
    """clip(q, floor · p, ratio · p), the floor by bisection; on lists, which are faster when this short."""

    def out(floor):
        return [max(min(b, ratio * a), floor * a) for a, b in zip(p, q, strict=True)]

    return out(bisect(0.0, 1.0, lambda floor: math.fsum(out(floor)) > 1.0))


def kl(p, out):
    return math.fsum(
        a * math.log(a / b) if b > 0.0 else math.inf for a, b in zip(p, out, strict=True) if a > 0.0
    )


def mentored(p, q, max_kl, ceiling=math.inf):
    return torch.tensor(_mentored(tuple(p.tolist()), tuple(q.tolist()), max_kl, ceiling), dtype=torch.float64)


@cache
def _mentored(p, q, max_kl, ceiling):
    over = [b / a for a, b in zip(p, q, strict=True) if b > a > 0.0]
    most = min(max(over, default=1.0), ceiling)
    if kl(p, clipped(p, q, most)) <= max_kl:
        return clipped(p, q, most)
    return clipped(p, q, bisect(1.0, most, lambda ratio: kl(p, clipped(p, q, ratio)) > max_kl))


def cactus(p, q, delta, ceiling):
    """Every drafted x in turn, accepted or replaced, weighted by its probability."""
    t = torch.minimum(p + (2.0 * delta * p * (1.0 - p)).sqrt(), torch.ones_like(p))
    out = torch.minimum(q, t)
    for x in range(len(p)):
        if q[x] > t[x]:
            h = p * (1.0 - t[x]) / (1.0 - p[x])
            h[x] = t[x]
            residual = (h - q).clamp(min=0.0)
            out = out + (q[x] - t[x]) * residual / residual.sum()
    return cap(out, p, ceiling)


def inside(p, law):
    if law.name == "truncation:min_p":
        return p >= law.param("min_p") * p.max()
    entropy = -float((p[p > 0] * p[p > 0].log()).sum())
    return p >= min(law.param("epsilon"), law.param("delta") * math.exp(-entropy))


def truncated(p, law):
    kept = torch.where(inside(p, law), p, 0.0)
    return kept / kept.sum()


def output(law, p, q):
    """The law of the token emitted at a drafted position; p, q: float64 [V]."""
    if law.name.startswith("truncation"):
        kept = torch.where(inside(p, law), q, 0.0)
        return kept + (1.0 - kept.sum()) * truncated(p, law)
    ceiling = law.param("ceiling") or math.inf
    if law.name == "collaborative:lenience":
        return lenience(p, q, max(law.param("lenience"), 1.0 / ceiling))
    if law.name == "collaborative:interpolation":
        return interpolation(p, q, law.param("lambda"), ceiling)
    if law.name == "collaborative:mentored":
        return mentored(p, q, law.param("max_kl"), ceiling)
    return cactus(p, q, law.param("delta"), ceiling)
