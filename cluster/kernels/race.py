"""The race for a token, row by row: see `cluster.speculation.race`, whose winners these are, bit for bit.

Doubles are added, multiplied and divided one by one and never fused, as numpy does it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import carray, prange  # type: ignore[attr-defined]

from cluster.kernels import compiled
from cluster.kernels.bits import bits_of_double, double_of_bits, doubles_at, floats_at

# Stands for the winner of a row that is no distribution.
NOBODY = -1

GROUP = 16
_CALLS = 1 + GROUP // 4
_LEAST, _RACE = np.uint64(0), np.uint64(2)
_MASK, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_FIRST, _SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_FIRST, _WEYL_SECOND = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LN2, _SQRT2 = 0.6931471805599453, 1.4142135623730951
_SLACK = GROUP * 2.0**32 * (1.0 + 1e-9)

_Word: TypeAlias = "np.uint64"
_Row: TypeAlias = npt.NDArray[Any]


@compiled(inline="always")
def _philox(c0: _Word, c1: _Word, c2: _Word, c3: _Word, k0: _Word, k1: _Word) -> tuple[_Word, ...]:
    """Philox4x32-10 of one counter: Salmon et al. (SC 2011), section 3.3."""
    for _ in range(10):
        low, high = c0 * _FIRST, c2 * _SECOND
        c0, c1, c2, c3 = (high >> _WORD) ^ c1 ^ k0, high & _MASK, (low >> _WORD) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + _WEYL_FIRST) & _MASK, (k1 + _WEYL_SECOND) & _MASK
    return c0, c1, c2, c3


@compiled(inline="always")
def _log(x: float) -> float:
    """Natural logarithm of a positive double by exactly rounded operations alone."""
    bits = bits_of_double(x)
    exponent = (bits >> 52) - 1023
    mantissa = double_of_bits((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000)
    if mantissa >= _SQRT2:
        mantissa *= 0.5
        exponent += 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = 2.0 / 21
    for k in range(9, -1, -1):
        series = series * square
        series = series + 2.0 / (2 * k + 1)
    log: float = series * s + exponent * _LN2
    return log


@compiled(inline="always")
def _exponential(word: _Word) -> float:
    return -_log((np.float64(word) + 0.5) * 2.0**-32)


@compiled()
def _best_of_group(
    row: _Row, group: int, head: _Word, position: _Word, key: _Word, scores: bool
) -> tuple[float, int]:
    """The largest log p - log E of a group, or p / E without `scores`, and the first who has it."""
    low, high, k0, k1 = position & _MASK, position >> _WORD, key & _MASK, key >> _WORD
    first = np.uint64(group * _CALLS)
    w0, _, _, _ = _philox(first, low, high, _RACE, k0, k1)
    ahead = np.int64(w0) % GROUP
    least = _exponential(head) / GROUP
    best, winner = -np.inf, NOBODY
    for quad in range(GROUP // 4):
        words = _philox(first + np.uint64(1 + quad), low, high, _RACE, k0, k1)
        for lane in range(4):
            member = 4 * quad + lane
            token = group * GROUP + member
            p = np.float64(row[token]) if token < row.shape[0] else 0.0
            if p > 0.0 or not scores:
                time = least if member == ahead else least + _exponential(words[lane])
                score = _log(p) - _log(time) if scores else p / time
                if score > best:
                    best, winner = score, token
    return best, winner


@compiled()
def _winner(row: _Row, position: _Word, key: _Word) -> int:
    groups = (row.shape[0] + GROUP - 1) // GROUP
    tops = np.zeros(groups)
    most, leader, running, odd = 0.0, 0, 0, 0
    whole = row.shape[0] // GROUP
    for group in range(groups):
        top = row[group * GROUP]
        # Of a fixed number where it can be, which vectors then take at once.
        if group < whole:
            for member in range(GROUP):
                value = row[group * GROUP + member]
                odd += value != value
                top = max(top, value)
        else:
            for token in range(group * GROUP, row.shape[0]):
                odd += row[token] != row[token]
                top = max(top, row[token])
        tops[group] = top
    for group in range(groups):
        if not np.isfinite(tops[group]):
            return NOBODY
        if tops[group] != 0.0:
            running += 1
        if tops[group] > most:
            most, leader = tops[group], group
    if odd or not most > 0.0:
        return NOBODY
    if running == 1:
        only, count = NOBODY, 0
        for token in range(leader * GROUP, min(row.shape[0], (leader + 1) * GROUP)):
            if row[token] != 0.0:
                only, count = token, count + 1
        if count == 1:
            return only
    low, high, k0, k1 = position & _MASK, position >> _WORD, key & _MASK, key >> _WORD
    heads = _philox(np.uint64(leader // 4), low, high, _LEAST, k0, k1)
    reached, _ = _best_of_group(row, leader, heads[leader % 4], position, key, False)
    best, winner = -np.inf, NOBODY
    for quad in range((groups + 3) // 4):
        heads = _philox(np.uint64(quad), low, high, _LEAST, k0, k1)
        for lane in range(4):
            group = 4 * quad + lane
            if group < groups and tops[group] > 0.0:
                # See `cluster.speculation.race._race`.
                if (4294967296.0 - np.float64(heads[lane])) - 1.0 > tops[group] * (_SLACK / reached):
                    continue
                score, token = _best_of_group(row, group, heads[lane], position, key, True)
                if score > best:
                    best, winner = score, token
    return winner


@compiled(parallel=True)
def winners(
    addresses: npt.NDArray[np.int64],
    doubles: npt.NDArray[np.bool_],
    vocab: int,
    positions: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
    tokens: npt.NDArray[np.int64],
) -> None:
    """Of rows [vocab] in memory, float64 where `doubles` says so and float32 elsewhere: the token with the
    largest log p + G, the first of equals; NOBODY where a row has no positive, finite sum.
    """
    for index in prange(addresses.shape[0]):
        if doubles[index]:
            row64 = carray(doubles_at(addresses[index]), (vocab,))
            tokens[index] = _winner(row64, positions[index], keys[index])
        else:
            row32 = carray(floats_at(addresses[index]), (vocab,))
            tokens[index] = _winner(row32, positions[index], keys[index])
