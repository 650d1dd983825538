"""Answers decoded again without drafts: under `coupled` and `none` the tokens must be the same.

A replay is the audit of the drafter's influence, which bets on `coupled` must not look at. Laws that accept
and reject have other noise without drafts, so their answers cannot be compared.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.noise import Noise
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from verifier_service.audit.subject import Subject
from verifier_service.target.uncertainty import uncertain

# Finished answers that wait for an idle moment; what does not fit is not replayed.
_WAITING = 64


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that is not the same. index: in the answer; served, decoded: the two tokens; margin: by
    how much the decoded one wins, in units of log p + G, or of logits at temperature 0; infinite where the
    served one has no probability; near_tie: so little that the measured discrepancy of logits explains it.
    """

    index: int
    served: int
    decoded: int
    margin: float
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Replayed:
    """tokens: how many were compared; difference: None where all are equal."""

    request: GenerationRequest
    subject: Subject
    tokens: int
    difference: Difference | None


class Replay:
    """An answer that is decoded again. request: as it was served; tokens: what was emitted, a token that
    ended it included; done: told of the outcome."""

    def __init__(
        self,
        request: GenerationRequest,
        tokens: Sequence[int],
        subject: Subject,
        done: Callable[[Replayed], None] | None = None,
    ) -> None:
        self.request = request
        self.tokens = tuple(tokens)
        self.subject = subject
        self.done = done

    def take(self, index: int, token: int, logits: Tensor, probs: Tensor, error: float) -> Replayed | None:
        """Compares the decoded token at `index`; None while the replay goes on.

        logits, probs: [V], before and after the transforms; error: the measured discrepancy of logits.
        """
        difference = None
        served = self.tokens[index]
        if token != served:
            noise = Noise(self.request.seed, len(self.request.prompt_ids) + index)
            sampling = self.request.sampling
            close = bool(error) and uncertain(logits[None], probs[None], sampling, noise, [token], error)[0]
            margin = _margin(logits, probs, sampling, noise, token, served)
            difference = Difference(index, served, token, margin, close)
        elif index + 1 < len(self.tokens):
            return None
        return Replayed(self.request, self.subject, index + 1, difference)


class Replays:
    """Chooses which answers are decoded again, and holds them until there is time; the engine's thread alone.

    share: of finished answers that can be compared.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._random = random.Random()
        self._waiting: deque[Replay] = deque()

    def consider(self, replay: Replay) -> None:
        """A finished answer."""
        comparable = not LAWS[replay.request.law.name].sends_rows and replay.tokens
        if comparable and len(self._waiting) < _WAITING and self._random.random() < self._share:
            self._waiting.append(replay)

    def add(self, replay: Replay) -> None:
        """An answer that is to be decoded again whatever the share."""
        self._waiting.append(replay)

    def first(self) -> Replay | None:
        """The one whose turn it is; it stays."""
        return self._waiting[0] if self._waiting else None

    def take(self) -> Replay:
        """The same, removed."""
        return self._waiting.popleft()

    def put_back(self, replay: Replay) -> None:
        """A replay that was interrupted, to begin anew."""
        self._waiting.appendleft(replay)


def _margin(
    logits: Tensor, probs: Tensor, sampling: Sampling, noise: Noise, token: int, served: int
) -> float:
    if sampling.temperature == 0.0:
        return float(logits[token] - logits[served])
    if float(probs[served]) == 0.0:
        return math.inf
    gumbel = noise.gumbel(noise.base, probs.shape[0])
    won, lost = (math.log(float(probs[each])) + float(gumbel[each]) for each in (token, served))
    return won - lost
