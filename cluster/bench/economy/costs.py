"""What drafters on GPUs of their own cost and save, from prices and measured times.

At saturation a verifier that drafts for itself spends its own time on both; with drafters apart it only
verifies, and serves 1 + k t_d / t_v times as many clients (arXiv 2606.25091). Whether that is cheaper is a
matter of prices, whether it is faster for one request of the round trip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Economy:
    """block: drafts a round; acceptance: chance of each draft; draft_ms: of one drafted token on a drafter's
    GPU, whose batch serves `draft_batch` sequences at once; own_draft_ms: the same on the verifier's GPU;
    verify_ms: of a step of `batch` sequences with their blocks; plain_ms: of a step without drafts;
    round_trip_ms: between the two; verifier_price, drafter_price: dollars per GPU and hour.

    Raises ValueError for a value out of range, naming it.
    """

    block: int
    acceptance: float
    draft_ms: float
    own_draft_ms: float
    verify_ms: float
    plain_ms: float
    round_trip_ms: float
    batch: int
    draft_batch: int
    verifier_price: float
    drafter_price: float

    def __post_init__(self) -> None:
        for name in ("draft_ms", "own_draft_ms", "verify_ms", "plain_ms", "verifier_price", "drafter_price"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("block", "batch", "draft_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ValueError(f"acceptance must be in [0, 1], got {self.acceptance}")
        if not 0.0 <= self.round_trip_ms < math.inf:
            raise ValueError(f"round_trip_ms must be at least 0, got {self.round_trip_ms}")

    @property
    def acceptance_length(self) -> float:
        """Tokens a round, (1 - a^(k+1)) / (1 - a): the verifier's own included."""
        return math.fsum(self.acceptance**k for k in range(self.block + 1))

    @property
    def drafters(self) -> float:
        """GPUs that keep one verifier's batch supplied: its sequences' drafting time over a step's, shared by
        what a drafter's batch holds. Not rounded: several verifiers may share them."""
        return self.batch * self.block * self.draft_ms / (self.verify_ms * self.draft_batch)

    @property
    def groups(self) -> int:
        """Groups that a verifier's sequences have to be cut into so that one is always ready."""
        cycle = self.block * self.draft_ms + self.round_trip_ms + self.verify_ms
        return math.ceil(cycle / self.verify_ms - 1e-9)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve. stream: tokens per second of each request, its wait not hidden; total: of a saturated
    verifier with its drafters; hourly: dollars; million: dollars per million tokens."""

    name: str
    stream: float
    total: float
    hourly: float

    @property
    def million(self) -> float:
        return self.hourly / (self.total * 3600.0) * 1e6


def ways(given: Economy) -> list[Way]:
    """Verifier alone, drafting on the verifier's own GPU, and drafters on GPUs of their own.

    Saturated: the verifier always has a step's worth of sequences ready, more of them under way.
    """
    length, price = given.acceptance_length, given.verifier_price
    own = given.block * given.own_draft_ms
    apart = given.block * given.draft_ms + given.round_trip_ms
    per_ms = 1000.0 * given.batch
    return [
        Way("verifier alone", 1000.0 / given.plain_ms, per_ms / given.plain_ms, price),
        Way(
            "drafting on the same GPU",
            1000.0 * length / (own + given.verify_ms),
            per_ms * length / (own + given.verify_ms),
            price,
        ),
        Way(
            "drafters apart",
            1000.0 * length / (apart + given.verify_ms),
            per_ms * length / given.verify_ms,
            price + given.drafters * given.drafter_price,
        ),
    ]


def break_even(given: Economy) -> float:
    """The price of a drafter's GPU at which drafting apart costs as much a token as the cheaper of the other
    ways; dollars an hour, 0 where it never pays."""
    alone, same, apart = ways(given)
    affordable = min(alone.million, same.million) * apart.total * 3600.0 / 1e6 - given.verifier_price
    return max(0.0, affordable / given.drafters)


def over_round_trips(given: Economy, round_trips: Sequence[float]) -> list[tuple[float, float]]:
    """Each request's speed-up over the verifier alone, by round trip in ms, which nothing hides."""
    length = given.acceptance_length
    return [
        (trip, length * given.plain_ms / (given.block * given.draft_ms + trip + given.verify_ms))
        for trip in round_trips
    ]
