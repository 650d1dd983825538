"""A circuit breaker: who fails again and again is left alone for a while, and longer each time."""

from __future__ import annotations

from dataclasses import dataclass

# Failures in a row that open it; answers in a row after which earlier openings are forgotten.
_FAILURES, _FORGIVEN = 6, 50
_FIRST_REST_S, _LONGEST_REST_S = 1.0, 60.0


@dataclass(slots=True)
class Breaker:
    """Of one drafter replica. Times are seconds on any clock that only rises."""

    failures: int = 0
    answers: int = 0
    openings: int = 0
    until: float = 0.0

    def answered(self) -> None:
        """A block came that could be used."""
        self.failures = 0
        self.answers += 1
        if self.answers >= _FORGIVEN:
            self.openings = 0

    def failed(self, now: float) -> bool:
        """A block was late, wrong or refused; whether that opens the breaker."""
        self.answers = 0
        self.failures += 1
        if self.failures < _FAILURES:
            return False
        self.failures = 0
        self.until = now + min(_LONGEST_REST_S, _FIRST_REST_S * 2.0**self.openings)
        self.openings += 1
        return True

    def rests(self, now: float) -> float:
        """Seconds for which the drafter is not to be asked; 0 if it may be."""
        return max(0.0, self.until - now)
