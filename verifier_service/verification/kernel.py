"""What the laws that accept, reject and draw again have in common.

Everything is normalised in float64: p = row / sum(row), q = weights / sum(weights). The target's rows stay
in the dtype they came in; of the positions that a law reaches, only the entries on the proposal's support
are looked at, and one row a round is summed up in full, to draw from it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise, Purpose
from cluster.speculation.proposal import unpack


@dataclass(frozen=True, slots=True)
class Position:
    """Target and proposal at one drafted position.

    row: the target's row as it came, [V]; mass: its sum; ids: the proposal's support; q and p: the two
    distributions on it; at: the drafted token's place in ids.
    """

    row: Tensor
    mass: float
    ids: tuple[int, ...]
    q: tuple[float, ...]
    p: tuple[float, ...]
    at: int


@dataclass(frozen=True, slots=True)
class OutputLaw:
    """A law of one emitted token, as it differs from the target p: `on` at the proposal's support, in the
    order of `Position.ids`, and scale · p elsewhere. It sums to 1."""

    on: tuple[float, ...]
    scale: float


def strict(position: Position) -> OutputLaw:
    """The target itself."""
    return OutputLaw(position.p, 1.0)


def positions(target_probs: Tensor, block: DraftBlock) -> Iterator[Position]:
    """The drafted positions in order, each summed when it is reached; the block is checked at once.

    target_probs: [N+1, V]. Raises ProposalError for a proposal that cannot have given the block.
    """
    rows = unpack(block, target_probs.shape[1])
    width = max((len(row.ids) for row in rows), default=0)
    padded = [[*row.ids, *[row.ids[0]] * (width - len(row.ids))] for row in rows]
    index = torch.tensor(padded, device=target_probs.device).view(len(rows), width)
    picked = target_probs[: len(rows)].gather(1, index.long()).double().tolist()

    def reached() -> Iterator[Position]:
        for k, (token, row, values) in enumerate(zip(block.tokens, rows, picked, strict=True)):
            mass = row_mass(target_probs[k])
            p = tuple(value / mass for value in values[: len(row.ids)])
            yield Position(target_probs[k], mass, row.ids, row.probs, p, row.ids.index(token))

    return reached()


def row_mass(row: Tensor) -> float:
    """The sum of a row in float64. Raises ValueError for a row that is no distribution."""
    mass = float(row.double().sum())
    if not 0.0 < mass < math.inf:
        raise ValueError(f"a target row must have a positive, finite sum, got {mass:g}")
    return mass


def draw(weights: Tensor, u: float) -> int:
    """The token at u in (0, 1) of a cumulative distribution, summed in the order of ids.

    weights: [V], non-negative, not all zero, any scale. A token of weight 0 is never drawn.
    """
    # On the CPU whatever the device: sums are then made one by one, in one order everywhere.
    cumulative = weights.cpu().double().cumsum(0).numpy()
    index = bisect_right(cumulative, u * float(cumulative[-1]))
    # Rounding can carry u · total no further than to the total itself, which the last token reaches.
    return index if index < len(cumulative) else int(weights.nonzero()[-1, 0])


def draw_residual(position: Position, on: Sequence[float], scale: float, u: float) -> int:
    """Draws from the law proportional to `on` at the proposal's support and scale · p elsewhere.

    Where that is zero throughout, the output law was the proposal's and a rejection has probability 0;
    rounding alone can lead here, and p is as good as anything.
    """
    weights = position.row.cpu().double() * (scale / position.mass)
    weights[list(position.ids)] = torch.tensor(on, dtype=torch.float64)
    return draw(weights if bool(weights.any()) else position.row, u)


def verify_against(
    target_probs: Tensor, block: DraftBlock, noise: Noise, output: Callable[[Position], OutputLaw]
) -> Verdict:
    """Rejection sampling whose tokens follow `output(position)` exactly, the bonus token the target.

    Accept x when u · q(x) < o(x), else draw from (o - q)+: Leviathan, Kalman, Matias (arXiv 2211.17192),
    section 2.3 and appendix A.1, with o in place of p. The inequality is strict, so that a token with
    o(x) = 0 fails even at u = 0. Raises ProposalError as `positions` does.
    """
    for k, position in enumerate(positions(target_probs, block)):
        law = output(position)
        if noise.uniform(Purpose.ACCEPT, k) * position.q[position.at] < law.on[position.at]:
            continue
        rest = [max(o - q, 0.0) for o, q in zip(law.on, position.q, strict=True)]
        token = draw_residual(position, rest, law.scale, noise.uniform(Purpose.RESIDUAL, 0))
        return Verdict((*block.tokens[:k], token), k)
    return Verdict((*block.tokens, bonus(target_probs[-1], noise)), len(block.tokens))


def bonus(row: Tensor, noise: Noise) -> int:
    """The token after a block that was accepted whole, or without a block; row: [V].

    Raises ValueError for a row that is no distribution.
    """
    row_mass(row)
    return draw(row, noise.uniform(Purpose.BONUS, 0))
