"""Two rows under one Gumbel noise: the exact joint law of their winners."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def joint(p: Sequence[float], q: Sequence[float]) -> list[list[float]]:
    """[V][V]: the probability that argmax(log p + G) is y and argmax(log q + G) is x, at [y][x].

    In exponentials, y is the first of E_v / p_v and x the first of E_v / q_v. For x = y the law is
    1 / Σ_v max(p_v / p_y, q_v / q_y) (Daliri, Musco, Suresh, arXiv 2408.07978). Otherwise write
    r = E_x / E_y: the others must outlast max(p_v / p_y, r q_v / q_x), so E_y integrates to
    1 / (A + B r)², A and B being constant between the r at which one of these maxima turns.
    """
    vocab = range(len(p))
    result = [[0.0] * len(p) for _ in vocab]
    for y in (v for v in vocab if p[v] > 0.0):
        for x in (v for v in vocab if q[v] > 0.0):
            if x == y:
                result[y][x] = 1.0 / sum(max(p[v] / p[y], q[v] / q[y]) for v in vocab)
            else:
                result[y][x] = _apart(p, q, y, x)
    return result


def _apart(p: Sequence[float], q: Sequence[float], y: int, x: int) -> float:
    # E_x >= E_y p_x / p_y, or x would win under p; E_x <= E_y q_x / q_y, or y would win under q.
    low = p[x] / p[y]
    high = q[x] / q[y] if q[y] > 0.0 else float("inf")
    if low >= high:
        return 0.0
    others = [(p[v] / p[y], q[v] / q[x]) for v in range(len(p)) if v not in (x, y)]
    turns = sorted(a / b for a, b in others if b > 0.0 and low < a / b < high)
    edges = [low, *turns, high]
    total = 0.0
    for start, end in pairwise(edges):
        inside = 0.5 * (start + end) if end < float("inf") else start + 1.0
        constant, slope = 1.0, 1.0
        for a, b in others:
            if a >= inside * b:
                constant += a
            else:
                slope += b
        upper = 1.0 / (constant + slope * end) if end < float("inf") else 0.0
        total += (1.0 / (constant + slope * start) - upper) / slope
    return total
