"""Gumbel noise and its winners: argmax(log p + G) as a race, argmax(p / E) with G = -log E.

E is standard exponential. Tokens run in groups of neighbouring ids: one word decides the least E of a group,
exponential with the group's size as its rate, another which token has it; the E of the others is the least
plus an exponential of their own, since that distribution has no memory. So a group that cannot win even by
its least E costs no more than one word, and a vocabulary little more than its groups.

Everything comes from integers through double-precision additions, multiplications and divisions only. These
are correctly rounded everywhere and numpy does not fuse them; a device does no more than find maxima. So both
services and both kinds of device get the same numbers, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cluster.kernels import race as kernels
from cluster.speculation.philox import Words, philox

# Tokens of a group: larger ones cost fewer words, and more for each group that could win.
_GROUP = kernels.GROUP
# Counters of a group's race: one says who has the least, the others serve four tokens each.
_CALLS = 1 + _GROUP // 4
# The last word of a counter keeps the least of groups and the races within them apart.
_LEAST, _RACE = 0, 2

_LN2 = math.log(2.0)
_SQRT2 = math.sqrt(2.0)
# log m = 2 atanh(s), s = (m - 1) / (m + 1); |s| < 0.172 for m in [sqrt(1/2), sqrt(2)), so the
# series to s^21 is exact to the last bits of a double.
_ATANH = [2.0 / (2 * k + 1) for k in range(11)]

_Doubles = NDArray[np.float64]
_Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GumbelField:
    """Gumbel noise G[position, token] of one key: all that a drafter under `coupled` gets to know."""

    key: int

    def gumbel(self, position: int, vocab: int) -> Tensor:
        """G[position, :]: standard Gumbel noise, float64 [vocab]."""
        groups = np.arange(-(-vocab // _GROUP))
        rows = _Rows.of([self], [position])
        noise = -_log(rows.race(np.zeros_like(groups), groups, rows.heads(groups.size)[0]))
        return torch.from_numpy(noise.reshape(-1)[:vocab])

    def winner(self, position: int, probs: Tensor) -> int:
        """argmax over tokens of log p + G[position], ties to the lowest id; a draw from p.

        probs: [V], non-negative, not all zero, in float32 or float64. Gumbel-max: Gumbel (1954);
        shared with a drafter: Daliri, Musco, Suresh (arXiv 2408.07978), section 3.
        """
        [token] = winners([self], [position], [probs])
        return token


def winners(fields: Sequence[GumbelField], positions: Sequence[int], probs: Sequence[Tensor]) -> list[int]:
    """`GumbelField.winner` of several rows of one vocabulary at once, for the price of a few.

    Raises ValueError for a row that is no distribution.
    """
    if all(row.device.type == "cpu" for row in probs):
        tokens = _compiled_winners(fields, positions, probs)
    else:
        tokens = _winners(fields, positions, probs)
    if kernels.NOBODY in tokens:
        raise ValueError("a target row must have a positive, finite sum")
    return tokens


def _compiled_winners(
    fields: Sequence[GumbelField], positions: Sequence[int], probs: Sequence[Tensor]
) -> list[int]:
    # Held until the race is over, should a row have been copied.
    rows = [row.contiguous() for row in probs]
    tokens = np.empty(len(rows), np.int64)
    kernels.winners(
        np.array([row.data_ptr() for row in rows], np.int64),
        np.array([row.dtype == torch.float64 for row in rows]),
        rows[0].shape[0],
        np.array(positions, np.uint64),
        np.array([field.key for field in fields], np.uint64),
        tokens,
    )
    found: list[int] = tokens.tolist()
    return found


def _winners(fields: Sequence[GumbelField], positions: Sequence[int], probs: Sequence[Tensor]) -> list[int]:
    """The same of rows on a device: it finds maxima, and few groups leave it."""
    surplus = -probs[0].shape[0] % _GROUP
    grouped = [(F.pad(row, (0, surplus)) if surplus else row).view(-1, _GROUP) for row in probs]
    tops = np.stack([row.amax(dim=1).cpu().numpy() for row in grouped]).astype(np.float64)
    if not (np.isfinite(tops).all() and (tops.max(axis=1) > 0.0).all()):
        return [kernels.NOBODY]
    tokens = [_only(row, groups) for row, groups in zip(grouped, tops, strict=True)]
    racing = [index for index, token in enumerate(tokens) if token is None]
    if racing:
        rows = _Rows.of([fields[index] for index in racing], [positions[index] for index in racing])
        found = _race(rows, [grouped[index] for index in racing], tops[racing])
        for index, token in zip(racing, found, strict=True):
            tokens[index] = token
    return [token for token in tokens if token is not None]


def _only(grouped: Tensor, tops: _Doubles) -> int | None:
    """The token that has all of a row's probability, if one has."""
    if np.count_nonzero(tops) > 1:
        return None
    group = int(np.argmax(tops))
    members = grouped[group].nonzero()
    return group * _GROUP + int(members[0]) if members.shape[0] == 1 else None


def _race(rows: _Rows, grouped: Sequence[Tensor], tops: _Doubles) -> list[int]:
    """The winners of rows [groups, size]; tops: each group's largest probability, [rows, groups]."""
    every = np.arange(len(grouped))
    heads = rows.heads(tops.shape[1])
    leaders = tops.argmax(axis=1)
    # What the group with the most probable token reaches is a bound for all the others.
    ahead = rows.race(every, leaders, heads[every, leaders])
    reached = np.array(
        [
            float((row[int(group)].cpu().double().numpy() / race).max())
            for row, group, race in zip(grouped, leaders, ahead, strict=True)
        ]
    )
    # A group's least E is at least (1 - U) / size. The slack covers rounding and zeros; what it lets
    # through merely costs its noise.
    reach = tops * (_GROUP * 2.0**32 * (1.0 + 1e-9) / reached[:, None])
    row_of, groups = np.nonzero((2**32 - heads) - 1.0 <= reach)
    edges = np.searchsorted(row_of, np.arange(len(grouped) + 1))
    chosen = np.concatenate(
        [
            row[torch.from_numpy(groups[edges[i] : edges[i + 1]]).to(row.device)].cpu().double().numpy()
            for i, row in enumerate(grouped)
        ]
    )
    scores = np.full(chosen.shape, -np.inf)
    running = chosen > 0.0
    race = rows.race(row_of, groups, heads[row_of, groups])
    scores[running] = _log(chosen[running]) - _log(race[running])
    found = []
    for first, last in itertools.pairwise(edges.tolist()):
        # The first of equal scores, and ids ascend.
        best = int(np.argmax(scores[first:last]))
        found.append(int(groups[first + best // _GROUP]) * _GROUP + best % _GROUP)
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """The keys and positions of several rows: arrays [rows, 1]."""

    keys: tuple[Words, Words]
    positions: tuple[Words, Words]

    @staticmethod
    def of(fields: Sequence[GumbelField], positions: Sequence[int]) -> _Rows:
        keys = np.array([field.key for field in fields], dtype=np.uint64)[:, None]
        places = np.array(positions, dtype=np.uint64)[:, None]
        return _Rows(_halves(keys), _halves(places))

    def heads(self, groups: int) -> Words:
        """The words behind the least E of the first groups: [rows, groups]."""
        quads = np.arange(-(-groups // 4), dtype=np.uint64)[None]
        words = philox((quads, *self.positions, _LEAST), self.keys)
        return words.reshape(words.shape[0], -1)[:, :groups]

    def race(self, row_of: _Ids, groups: _Ids, heads: Words) -> _Doubles:
        """E of the tokens of some groups, given the words behind their least: [groups, size]."""
        counters: Words = (groups[:, None] * _CALLS + np.arange(_CALLS)).astype(np.uint64)
        low, high = (part[row_of] for part in self.positions)
        first, second = (part[row_of] for part in self.keys)
        words = philox((counters, low, high, _RACE), (first, second))
        least = _exponential(heads) / _GROUP
        race = least[:, None] + _exponential(words[:, 1:].reshape(groups.size, _GROUP))
        race[np.arange(groups.size), words[:, 0, 0] % _GROUP] = least
        return race


def _halves(words: Words) -> tuple[Words, Words]:
    """The low and the high 32 bits."""
    return words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)


def _exponential(words: Words) -> _Doubles:
    """Words in [0, 2**32), through doubles in the open interval (0, 1), to standard exponential noise."""
    uniform = words.astype(np.float64) + 0.5
    return -_log(uniform * 2.0**-32)


def _log(x: _Doubles) -> _Doubles:
    """Natural logarithm of positive doubles by exactly rounded operations alone."""
    bits = x.view(np.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    above = mantissa >= _SQRT2
    mantissa = np.where(above, mantissa * 0.5, mantissa)
    exponent = exponent + above
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, _ATANH[-1])
    for coefficient in reversed(_ATANH[:-1]):
        series = series * square
        series = series + coefficient
    return series * s + exponent * _LN2
