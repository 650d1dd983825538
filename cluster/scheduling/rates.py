"""What a round promises by block length: tokens, and the time that they take."""

from __future__ import annotations

import math
from typing import NamedTuple

from cluster.scheduling.acceptance import Outlook
from cluster.scheduling.history import History
from cluster.speculation.messages import BlockPlan

# A wait shorter than this share of a step does not make up for what decoding on loses.
_WAIT = 0.1
# How seldom a drafter is taken to say anything at least.
_SAYS_LEAST = 0.02
# Rounds that follow each other, the first of which finds nothing foreseen, are taken to be at most so many.
_RUN = 8


class Promise(NamedTuple):
    """Of a round, from its plan to the next. tokens, seconds: expected, of the request itself; steps, rows:
    in which it takes part, and its rows in them all; busy: seconds for which others are held up, waits that
    they need not share left out; meanwhile: the best number of tokens to decode while its block is in
    flight; other_tokens: that a step gives to other sequences."""

    tokens: float
    seconds: float
    steps: float
    rows: float
    busy: float
    meanwhile: int = 0
    other_tokens: float = 0.0

    @property
    def own(self) -> float:
        """Tokens a second that the request gets."""
        return self.tokens / self.seconds

    @property
    def rate(self) -> float:
        """Tokens a second that the round is worth to all."""
        return self.tokens / self.seconds + self.other_tokens * self.steps / self.busy

    def mixed(self, other: Promise, share: float) -> Promise:
        """Where a share of rounds are like another."""
        if not share:
            return self
        mine = 1.0 - share
        return Promise(
            mine * self.tokens + share * other.tokens,
            mine * self.seconds + share * other.seconds,
            mine * self.steps + share * other.steps,
            mine * self.rows + share * other.rows,
            mine * self.busy + share * other.busy,
            self.meanwhile,
            self.other_tokens,
        )


def promises(history: History, expected: Outlook, hides: bool) -> list[Promise]:
    """For blocks of 0, 1, … drafts, where rounds like this one follow each other. hides: whether a block may
    be drafted ahead of its round, and its round decode on while it is under way. Needs measured costs."""
    promised = [_best(history, expected, k, hides, True) for k in range(len(expected.tokens))]
    if history.begins and history.foresees and hides and not history.waits:
        said = 1.0 - _spoken(history, expected)[1]
        for k, each in enumerate(promised):
            hidden = _wait(history, expected, k, hides, False) - _wait(history, expected, k, hides, True)
            run = min(_RUN, max(1.0, history.remaining / each.tokens))
            promised[k] = each._replace(seconds=each.seconds + said * max(0.0, hidden) / run)
    return promised


def promise(history: History, expected: Outlook, length: int, hides: bool) -> Promise:
    """The same for one length and this very round."""
    return _best(history, expected, length, hides, history.foreseen)


def planned(history: History, expected: Outlook, plan: BlockPlan, hides: bool) -> Promise:
    """Of a round that was planned so, whether or not that is best."""
    hides = hides and not history.waits
    wait = _wait(history, expected, plan.length, hides, history.foreseen)
    spoken, silent = _spoken(history, expected) if plan.length else (expected, 0.0)
    ahead = hides and plan.ahead > 0
    return _mixed(history, _promise(history, spoken, plan.length, plan.meanwhile, wait, ahead), silent)


def _wait(history: History, expected: Outlook, k: int, hides: bool, foreseen: bool) -> float:
    """Seconds, with nothing guessed. foreseen: the round before had a block as well."""
    wait = history.draft.of(k)
    if history.at_once:
        # It was asked so often before it said something.
        return wait / max(_SAYS_LEAST, expected.says)
    # One that foresees drafts during that round's step, but no trees.
    if not (hides and foreseen and history.foresees and not expected.tree and k):
        return wait
    step = _step(history, expected.rows[k]) + history.draft.price
    # What a round waits for comes so long after the round before it began: the next one waits less.
    return max(0.0, wait - step) / 2.0


def _spoken(history: History, expected: Outlook) -> tuple[Outlook, float]:
    """Of rounds that have a draft, and the share of those that have none and are not waited for: where the
    drafter foresees, that is known at once. Rounds that are planned anew are none."""
    if history.at_once:
        return expected.spoken(), 0.0
    if not history.foresees or not 0.0 < expected.says < 1.0:
        return expected, 0.0
    return expected.spoken(), 1.0 - expected.says


def _mixed(history: History, spoken: Promise, silent: float) -> Promise:
    if not silent:
        return spoken
    step = _step(history, 0.0) + history.draft.price
    return spoken.mixed(Promise(1.0, step, 1.0, 1.0, step), silent)


def _best(history: History, expected: Outlook, k: int, hides: bool, foreseen: bool) -> Promise:
    hides = hides and not history.waits
    wait = _wait(history, expected, k, hides, foreseen)
    spoken, silent = _spoken(history, expected) if k else (expected, 0.0)
    best = _mixed(history, _promise(history, spoken, k, 0, wait, hides), silent)
    if hides and k >= 2 and wait and wait >= _WAIT * (plain := _step(history, 0.0)):
        most = min(k - 1, math.ceil(wait / plain))
        # As many as the wait has room for, or one more, during which the block comes.
        for m in sorted({max(1, most - 1), most}):
            going = _mixed(history, _promise(history, spoken, k, m, wait, hides), silent)
            best = going if going.rate > best.rate else best
    return best


def _promise(
    history: History, expected: Outlook, k: int, meanwhile: int, wait: float, hides: bool
) -> Promise:
    """Of one that decodes so many tokens and then waits for its block, having paid once for asking.

    The first of its drafts must be those tokens, or nothing of it is of use; then the rest is verified.
    A block that was drafted ahead and guessed right is not waited for.
    """
    tokens, rows, others = expected.tokens, expected.rows, history.other_tokens
    guessed = expected.guessed[k] if hides and not history.foresees else 0.0
    price = history.draft.price if k else 0.0
    whole = _step(history, rows[k]) + price
    right = Promise(tokens[k], whole, 1.0, 1.0 + rows[k], whole, meanwhile, others)
    if not meanwhile:
        # Nobody computes while the engine's own thread drafts.
        held_up = whole if history.apart else wait + whole
        late = Promise(tokens[k], wait + whole, 1.0, 1.0 + rows[k], held_up, 0, others)
        return late.mixed(right, guessed)
    fits = tokens[meanwhile] - tokens[meanwhile - 1]
    rest = max(0.0, rows[k] - rows[meanwhile]) / max(rows[meanwhile], 1e-9)
    plain, last = meanwhile * _step(history, 0.0) + price, fits * _step(history, rest)
    late = Promise(
        meanwhile + fits + tokens[k] - tokens[meanwhile],
        max(plain, wait) + last,
        meanwhile + fits,
        meanwhile + fits + fits * rest,
        plain + last,
        meanwhile,
        others,
    )
    return late.mixed(right, guessed)


def _step(history: History, drafts: float) -> float:
    """Seconds of a step in which the request has so many drafts."""
    assert history.verify is not None
    rows = history.other_rows + 1.0 + drafts
    return history.other_seconds + history.verify.of(rows, rows * history.committed)
