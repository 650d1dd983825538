"""Every outcome of a random procedure with its exact probability, by running the procedure itself.

The procedure draws from a `Run`. A uniform of a run has no value, only the interval that the comparisons so
far leave it; a comparison that the interval does not decide is decided both ways, in two runs. What is
integrated is therefore the shipped `verify`, not a second statement of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from cluster.speculation.noise import DraftField, Noise, Purpose
from cluster.speculation.race import GumbelField

T = TypeVar("T", bound=Hashable)


class Run:
    """One course of a procedure: `script` settles its first decisions, the first way open the others.

    probability: of this course; alternatives: scripts of the ways that were left.
    """

    def __init__(self, script: tuple[int, ...] = ()) -> None:
        self.probability = 1.0
        self.alternatives: list[tuple[int, ...]] = []
        self._script = script
        self._taken: tuple[int, ...] = ()
        self._intervals: dict[Hashable, tuple[float, float]] = {}

    def choose(self, shares: Sequence[float]) -> int:
        """An index drawn in proportion to shares, which are non-negative and not all zero."""
        if len(self._taken) < len(self._script):
            pick = self._script[len(self._taken)]
        else:
            pick, *others = [index for index, share in enumerate(shares) if share > 0.0]
            self.alternatives.extend((*self._taken, other) for other in others)
        self._taken = (*self._taken, pick)
        self.probability *= shares[pick] / math.fsum(shares)
        return pick

    def uniform(self, key: Hashable) -> Uniform:
        """A uniform in (0, 1); the same one for the same key."""
        return Uniform.of(self, key, 1.0)

    def below(self, key: Hashable, threshold: float) -> bool:
        """Whether the uniform of that key is below a threshold."""
        low, high = self._intervals.get(key, (0.0, 1.0))
        if threshold <= low or threshold >= high:
            return threshold >= high
        below = self.choose((threshold - low, high - threshold)) == 0
        self._intervals[key] = (low, threshold) if below else (threshold, high)
        return below


class Uniform(float):
    """A run's uniform times a positive factor; all that can be done with it is to scale and compare it."""

    run: Run
    key: Hashable
    factor: float

    @classmethod
    def of(cls, run: Run, key: Hashable, factor: float) -> Uniform:
        made = cls(math.nan)
        made.run, made.key, made.factor = run, key, factor
        return made

    def __mul__(self, factor: float) -> Uniform:
        return Uniform.of(self.run, self.key, self.factor * factor)

    __rmul__ = __mul__

    def __lt__(self, threshold: float) -> bool:
        return self.run.below(self.key, threshold / self.factor)

    def __ge__(self, threshold: float) -> bool:
        return not self < threshold

    # Ties have probability 0.
    __le__, __gt__ = __lt__, __ge__


@dataclass(frozen=True, slots=True)
class ChosenField(GumbelField):
    """Gumbel noise of a run: each winner is drawn from its row (Gumbel-max)."""

    run: Run

    def winner(self, position: int, probs: Tensor) -> int:
        return self.run.choose(probs.tolist())


@dataclass(frozen=True, slots=True)
class ChosenNoise(Noise):
    """The verifier's noise of a run; the seed tells noises of one run apart."""

    run: Run

    @property
    def field(self) -> GumbelField:
        return ChosenField(self.seed, self.run)

    def uniform(self, purpose: Purpose, index: int) -> float:
        return self.run.uniform((purpose, self.seed, self.base, index))


@dataclass(frozen=True, slots=True)
class ChosenDraft(DraftField):
    """A drafter's noise of a run."""

    run: Run

    def uniform(self, index: int) -> float:
        return self.run.uniform((Purpose.DRAFT, self.key, self.base, index))


def outcomes(procedure: Callable[[Run], T]) -> dict[T, float]:
    """Each result of the procedure with its probability. The procedure must draw from its run alone."""
    found: dict[T, list[float]] = {}
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        run = Run(scripts.pop())
        found.setdefault(procedure(run), []).append(run.probability)
        scripts.extend(run.alternatives)
    return {result: math.fsum(parts) for result, parts in found.items()}
