"""What the engine measures while it serves, and what of it planners are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from cluster.scheduling import Budget, Calibration, DraftCost, Experience, Round, VerifyCost
from cluster.scheduling.calibration import BINS, Reach, bin_of
from cluster.speculation.messages import DraftBlock
from verifier_service.measuring.pricing import Prices, Step
from verifier_service.measuring.waits import Wait

# A new measurement's share of a running mean.
_SHARE = 0.1
# A step may be slow for reasons of its own: how far one alone can move the model.
_LARGEST_RATIO = 2.0
# Positions tried that counts remember: experience is a guess for others, and fades.
_EXPERIENCE, _CALIBRATION = 200.0, 200.0
# Admission uses figures of so many steps ago, so that no draft that it decides on is in them.
_DELAY = 2


class Measurements:
    """The engine's thread alone. profile: of verify steps, None if none was made: nothing is then corrected.

    verify: the profile as it stands now; rows_per_sequence, tokens_per_sequence, seconds_per_sequence: means
    over steps, for each sequence that decodes: rows put into a step, tokens got from it, and what it takes
    longer for blocks that were asked for; prices: of asking.

    What sequences were planned since changes these means, and is not in them before many steps are over. Who
    is planned next is told of it: all would otherwise do what pays while the others go on as before.
    """

    def __init__(self, profile: VerifyCost | None) -> None:
        self.verify = profile
        self._waits: dict[str, Wait] = {}
        self._experience: dict[tuple[str, str], Experience] = {}
        self._tried = [0.0] * BINS
        self._accepted = [0.0] * BINS
        # Siblings behind the first, where those before them were wrong, and of these the right ones.
        self._later = (0.0, 0.0)
        self.rows_per_sequence = 1.0
        self.tokens_per_sequence = 1.0
        self.seconds_per_sequence = 0.0
        self._more_rows = self._more_tokens = 0.0
        self.prices = Prices()
        self._past: deque[Budget] = deque(maxlen=_DELAY + 1)

    def summary(self) -> dict[str, dict[str, float]]:
        """Milliseconds of a verify step by rows, without its overhead; and by drafter pool of the wait for a
        block, and of what asking for it takes from the step."""
        cost = self.verify
        steps = dict(zip(cost.rows, cost.seconds, strict=True)) if cost is not None else {}
        return {
            "step_ms": {str(rows): 1e3 * seconds for rows, seconds in steps.items()},
            "overhead_ms": {"step": 1e3 * cost.overhead} if cost is not None else {},
            "wait_ms": {name: 1e3 * wait.line[0] for name, wait in list(self._waits.items())},
            "asking_ms": {name: 1e3 * self.prices.of(name) for name in list(self._waits)},
        }

    def draft(self, drafter: str, apart: bool = True) -> DraftCost:
        """What a block of this drafter costs. apart: it drafts while the engine goes on."""
        wait = self._waits.get(drafter)
        base, per_token = wait.line if wait is not None else (0.0, 0.0)
        if not apart:
            return DraftCost(base, per_token)
        return DraftCost(base, per_token, self.prices.of(drafter), self.prices.compared(drafter))

    def experience(self, domain: str, drafter: str) -> Experience:
        """What drafts came to in requests that are over or under way."""
        return self._experience.get((domain, drafter), Experience())

    def waited(self, drafter: str, length: int, seconds: float, drafting: float) -> None:
        """A block was there after `seconds`, of which its drafter took `drafting`; length: as planned."""
        self._waits.setdefault(drafter, Wait()).add(length, seconds, drafting)

    def decided(self, domain: str, drafter: str, past: Round) -> None:
        """A round with a block is over."""
        tried, first = past.tried, sum(past.first_kept(k) for k in range(past.tried))
        later = [right for _, right in past.later()]
        before = self.experience(domain, drafter)
        self._experience[domain, drafter] = Experience(
            *_faded(before.tried + tried, before.accepted + first, _EXPERIENCE),
            *_faded(before.later_tried + len(later), before.later_right + sum(later), _EXPERIENCE),
            # Of what was cut it is not known what its drafter had said.
            *_faded(before.asked + past.whole, before.given + (past.whole and past.drafted > 0), _EXPERIENCE),
        )
        held = self._later[0] + len(later), self._later[1] + sum(later)
        self._later = _faded(*held, _CALIBRATION)
        for k, max_q in enumerate(past.max_q[:tried]):
            which = bin_of(max_q)
            self._tried[which] += 1.0
            self._accepted[which] += past.first_kept(k)
            counts = self._tried[which], self._accepted[which]
            self._tried[which], self._accepted[which] = _faded(*counts, _CALIBRATION)

    def others(self, count: int) -> tuple[float, float]:
        """Rows that so many sequences put into a step, and tokens that they get from it."""
        rows = count * self.rows_per_sequence + self._more_rows
        tokens = count * self.tokens_per_sequence + self._more_tokens
        return max(float(count), rows), max(float(count), tokens)

    def replanned(self, before: tuple[float, float] | None, now: tuple[float, float]) -> None:
        """A sequence's rows and tokens in a step are to be others from now on; None: it begins."""
        rows, tokens = before or (self.rows_per_sequence, self.tokens_per_sequence)
        self._more_rows += now[0] - rows
        self._more_tokens += now[1] - tokens

    def stepped(self, decoding: int, tokens: int, forward: float, step: Step) -> None:
        """A step without prompts is over. decoding: sequences, whether they took part or not; tokens:
        decided; forward: seconds of the step's forward and verdicts."""
        asking = self.prices.asking(step.asked)
        self.rows_per_sequence += _SHARE * (step.rows / decoding - self.rows_per_sequence)
        self.tokens_per_sequence += _SHARE * (tokens / decoding - self.tokens_per_sequence)
        self.seconds_per_sequence += _SHARE * (asking / decoding - self.seconds_per_sequence)
        self._more_rows *= 1.0 - _SHARE
        self._more_tokens *= 1.0 - _SHARE
        cost = self.verify
        if cost is None:
            return
        self.prices.stepped(step, cost)
        ratio = (forward - asking) / cost.forward(step.rows, step.keys)
        ratio = min(_LARGEST_RATIO, max(1.0 / _LARGEST_RATIO, ratio))
        corrected = list(cost.seconds)
        for index, share in _shares(cost.rows, step.rows):
            corrected[index] *= 1.0 + _SHARE * share * (ratio - 1.0)
        # What comes between steps may take long for reasons of its own, too.
        besides = min(max(0.0, step.seconds - forward), forward)
        overhead = cost.overhead + _SHARE * (besides - cost.overhead)
        self.verify = replace(cost, seconds=tuple(corrected), overhead=overhead)

    def step_begins(self, blocks: Iterable[DraftBlock]) -> None:
        """Once a step, before `budget`; blocks: those that it has in hand."""
        calibration = self._calibration()
        chances = []
        for block in blocks:
            reach = Reach(calibration)
            chances += [reach.add(max_q, block.parent(draft)) for draft, max_q in enumerate(block.max_q)]
        chances.sort(reverse=True)
        self._past.append(Budget(rows=0, cost=self.verify, calibration=calibration, survivals=tuple(chances)))

    def budget(self, rows: int, base_rows: int, keys: float) -> Budget:
        """For a step of several sequences, from the figures of `_DELAY` steps ago."""
        if len(self._past) <= _DELAY:
            return Budget(rows, base_rows, keys)
        return replace(self._past[0], rows=rows, base_rows=base_rows, keys=keys)

    def own_budget(self, rows: int, keys: float) -> Budget:
        """For one sequence by itself, settled before its block is drafted."""
        return Budget(rows, 1, keys, self.verify, self._calibration())

    def _calibration(self) -> Calibration:
        return Calibration(tuple(self._tried), tuple(self._accepted), *self._later)


def _faded(tried: float, right: float, most: float) -> tuple[float, float]:
    """Counts of which no more than `most` are remembered."""
    fade = min(1.0, most / tried) if tried else 1.0
    return fade * tried, fade * right


def _shares(points: tuple[int, ...], rows: int) -> list[tuple[int, float]]:
    """The measured points on both sides of a number of rows, and how near it is to each."""
    for index, (left, right) in enumerate(pairwise(points)):
        if left <= rows <= right:
            share = (rows - left) / (right - left)
            return [(index, 1.0 - share), (index + 1, share)]
    return [(0 if rows < points[0] else len(points) - 1, 1.0)]
