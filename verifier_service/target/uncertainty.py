"""Tokens that another batch could have changed, where a row's logits are not the same bits in every batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cluster.speculation.noise import Noise
from cluster.speculation.race import GumbelField
from cluster.speculation.sampling import (
    Sampling,
    covering_edge,
    entropy,
    eta_edge,
    surprise,
    target_probs,
)
from verifier_service.target.target import Rows, TargetModel

_PROMPT, _BLOCK = 64, 9
# Tokens beyond an edge of truncation that are looked at, unless more are within reach of it.
_NEAREST = 15


def logit_discrepancy(target: TargetModel) -> float:
    """The largest difference seen between a row's logits alone and in a block, over a few rows of fixed
    tokens. A sampled maximum and no bound: other rows, or other batches, may differ by more."""
    length = min(_PROMPT, target.context - _BLOCK)
    prompt = [(7 * i * i + 3) % target.vocab_size for i in range(length)]
    drafts = [(11 * i + 5) % target.vocab_size for i in range(_BLOCK)]
    cache = target.pool.open()
    target.forward([Rows(cache, prompt, 0, 0)])
    alone = [target.forward([Rows(cache, [token], length + i, 1)])[0] for i, token in enumerate(drafts)]
    [block] = target.forward([Rows(cache, drafts, length, _BLOCK)])
    cache.release()
    return float((torch.cat(alone) - block).abs().max())


def uncertain(
    logits: Tensor, probs: Tensor, sampling: Sampling, noise: Noise, tokens: Sequence[int], error: float
) -> tuple[bool, ...]:
    """For each emitted token, whether logits that differ by up to `error` could have made it another one.

    logits, probs: [N+1, V], before and after the transforms; row k decided tokens[k] = argmax log p + G
    at noise.base + k. True where the token's margin is at most 2 error / temperature, or where another
    token would win if it came in over an edge of truncation, or the token itself would fall out. Of a
    nucleus the edge is found to first order: which tokens come in together is not searched for. Edges that
    hang on the entropy, of typical_p and eta_cutoff, are given all the room that its change can take.
    """
    return tuple(
        _Decision(row, row_probs, sampling, noise.field, noise.base + k, token, error).uncertain
        for k, (row, row_probs, token) in enumerate(zip(logits, probs, tokens, strict=False))
    )


class _Decision:
    """How one token was decided. logits, probs: [V], before and after the transforms."""

    def __init__(
        self,
        logits: Tensor,
        probs: Tensor,
        sampling: Sampling,
        field: GumbelField,
        position: int,
        token: int,
        error: float,
    ) -> None:
        self._logits, self._probs, self._sampling = logits, probs, sampling
        self._field, self._position, self._token = field, position, token
        self._error = error
        self._kept = probs > 0
        # What twice the error does to the ratio of two probabilities.
        temperature = max(sampling.temperature, torch.finfo(torch.float32).tiny)
        self._shrink = math.exp(-2.0 * error / temperature)

    @property
    def uncertain(self) -> bool:
        if self._sampling.temperature == 0.0:
            near = self._logits >= self._logits[self._token] - 2.0 * self._error
            return int(near.sum()) > 1
        if self._loses(self._probs):
            return True
        if self._sampling.typical_p < 1.0 or self._sampling.eta_cutoff > 0.0:
            stays, within_reach = self._by_entropy()
            if not bool(stays[self._token]):
                return True
            if self._loses(self._scaled(self._logits).where(within_reach, 0.0)):
                return True
        return self._outsider_wins() or self._falls_out()

    def _loses(self, weights: Tensor) -> bool:
        """Whether the token loses to another once its weight shrinks; weights: [V], any scale."""
        return self._winner(weights) != self._token

    def _winner(self, weights: Tensor) -> int:
        """Who wins once the token's weight shrinks."""
        weights = weights.clone()
        weights[self._token] *= self._shrink
        return self._field.winner(self._position, weights)

    def _outsider_wins(self) -> bool:
        """Whether a token beyond the edge would win, and can come in."""
        if bool(self._kept.all()):
            return False
        beyond = self._logits.masked_fill(self._kept, float("-inf"))
        near = torch.topk(beyond, min(_NEAREST, len(beyond)))
        edge = self._logits[self._kept].min() - 2.0 * self._error
        if bool(near.values[-1] >= edge):
            near = torch.topk(beyond, len(beyond))
        weights = torch.zeros_like(self._logits)
        weights[near.indices] = self._scaled(near.values)
        weights[self._token] = self._scaled(self._logits[self._token])
        if not self._loses(weights):
            return False
        # The worst at the edge: what lies beyond it rises, what lies inside falls; or, where there is only so
        # much room inside, one that would win rises alone.
        if self._changed_by(~self._kept):
            return True
        while (rival := self._winner(weights)) != self._token:
            alone = torch.zeros_like(self._kept)
            alone[rival] = True
            if self._changed_by(alone):
                return True
            weights[rival] = 0.0
        return False

    def _falls_out(self) -> bool:
        """Whether the token itself can come to lie beyond the edge."""
        own, reach = self._logits[self._token], 2.0 * self._error
        rises = self._logits >= own - reach
        below = self._probs.masked_fill(self._logits >= own, 0.0)
        # The token is the last inside, or an outsider overtakes it, or those below it weigh next to nothing.
        last = bool((below.masked_fill(rises, 0.0) == 0.0).all())
        if not last and not bool((rises & ~self._kept).any()) and float(below.sum()) > 1.0 - self._shrink:
            return False
        # The worst for the token: what lies above it, or can, rises, and all else falls.
        rises[self._token] = False
        return self._changed_by(rises)

    def _by_entropy(self) -> tuple[Tensor, Tensor]:
        """Of the edges that hang on the entropy: the tokens that stay inside, and all that can be inside.

        A log p changes by up to `change`, the entropy to first order by half of that times the mean of
        |log p + H|, so that what is compared with an edge moves by less than `reach`, and so does the edge.
        """
        sampling, change = self._sampling, -math.log(self._shrink)
        [row] = target_probs(self._logits[None], replace(sampling, typical_p=1.0, eta_cutoff=0.0))
        own = surprise(row)
        stays = within_reach = row > 0
        if sampling.typical_p < 1.0:
            strangeness = (own - entropy(row)).abs()
            reach = change * (1.0 + _mean(strangeness, row))
            least = covering_edge(strangeness, row, sampling.typical_p * self._shrink)
            most = covering_edge(strangeness, row, min(sampling.typical_p / self._shrink, 1.0))
            stays = stays & (strangeness <= least - 2.0 * reach)
            within_reach = within_reach & (strangeness <= most + 2.0 * reach)
        if sampling.eta_cutoff > 0.0:
            [cut] = target_probs(self._logits[None], replace(sampling, eta_cutoff=0.0))
            own = own + row[cut > 0].double().sum().log()
            edge = -eta_edge(cut, sampling.eta_cutoff).log()
            reach = change * (1.0 + _mean((own - entropy(cut)).abs(), cut))
            stays = stays & (own <= edge - reach)
            within_reach = within_reach & (own <= edge + reach)
        return stays, within_reach

    def _scaled(self, logits: Tensor) -> Tensor:
        """Weights in proportion to the probabilities without truncation."""
        return torch.exp((logits - self._logits.max()) / self._sampling.temperature)

    def _changed_by(self, rises: Tensor) -> bool:
        """Whether another token wins where these logits rise by the error and the others fall."""
        logits = self._logits.double()
        changed = torch.where(rises, logits + self._error, logits - self._error)
        probs = target_probs(changed[None], self._sampling)[0]
        return self._field.winner(self._position, probs) != self._token


def _mean(values: Tensor, probs: Tensor) -> float:
    """Over a distribution; what has no probability does not count, though it be infinite."""
    return float((probs.double() * values.where(probs > 0, 0.0)).sum())
