"""What a round promises by block length: tokens, and the time that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.scheduling.acceptance import Outlook
from cluster.scheduling.history import History
from cluster.speculation.messages import BlockPlan

# A wait shorter than this share of a step does not make up for what decoding on loses.
_WAIT = 0.1
# Rounds that the first of them, for which nothing was foreseen, is taken to be followed by, itself included.
_RUN = 2
# A block that usually takes this share of a step is often late for the next one.
_LATE = 0.8


@dataclass(frozen=True, slots=True)
class Promise:
    """Of a round, from its plan to the next. tokens, seconds: expected, of the request itself; meanwhile:
    the best number of tokens to decode while its block is in flight; others: tokens a second that other
    sequences get from the same steps."""

    tokens: float
    seconds: float
    meanwhile: int = 0
    others: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second that the round is worth to all."""
        return self.tokens / self.seconds + self.others


def promises(history: History, expected: Outlook, hides: bool) -> list[Promise]:
    """For blocks of 0, 1, … drafts, where rounds like this one follow each other. hides: whether a block may
    be drafted ahead of its round, and its round decode on while it is under way. Needs measured costs."""
    promised = [_best(history, expected, k, hides, True) for k in range(len(expected.tokens))]
    if history.begins and history.foresees and hides and not history.waits:
        for k, each in enumerate(promised):
            hidden = _wait(history, expected, k, hides, False) - _wait(history, expected, k, hides, True)
            promised[k] = replace(each, seconds=each.seconds + max(0.0, hidden) / _RUN)
    return promised


def promise(history: History, expected: Outlook, length: int, hides: bool) -> Promise:
    """The same for one length and this very round."""
    return _best(history, expected, length, hides, history.foreseen)


def planned(history: History, expected: Outlook, plan: BlockPlan, hides: bool) -> Promise:
    """Of a round that was planned so, whether or not that is best."""
    hides = hides and not history.waits
    wait = _wait(history, expected, plan.length, hides, history.foreseen)
    return _promise(history, expected, plan.length, plan.meanwhile, wait, hides and plan.ahead > 0)


def _wait(history: History, expected: Outlook, k: int, hides: bool, foreseen: bool) -> float:
    """Seconds, with nothing guessed. foreseen: the round before had a block as well."""
    wait = history.draft.of(k)
    # One that foresees drafts during that round's step, but no trees.
    if not (hides and foreseen and history.foresees and not expected.tree and k):
        return wait
    step = _step(history, expected.rows[k]) + history.draft.price
    if history.others and wait > _LATE * step:
        # Who is late misses a step that others take.
        return min(wait, step)
    # What a round waits for comes so long after the round before it began: the next one waits less.
    return max(0.0, wait - step) / 2.0


def _best(history: History, expected: Outlook, k: int, hides: bool, foreseen: bool) -> Promise:
    hides = hides and not history.waits
    wait, plain = _wait(history, expected, k, hides, foreseen), _step(history, 0.0)
    waiting = _promise(history, expected, k, 0, wait, hides)
    if not hides or k < 2 or wait < _WAIT * plain:
        return waiting
    most = min(k - 1, math.ceil(wait / plain))
    # As many as the wait has room for, or one more, during which the block comes.
    choices = {max(1, most - 1), most}
    return max(
        [waiting, *(_promise(history, expected, k, m, wait, hides) for m in sorted(choices))], key=_rate
    )


def _promise(
    history: History, expected: Outlook, k: int, meanwhile: int, wait: float, hides: bool
) -> Promise:
    """Of one that decodes so many tokens and then waits for its block, having paid once for asking.

    The first of its drafts must be those tokens, or nothing of it is of use; then the rest is verified.
    A block that was drafted ahead and guessed right is not waited for.
    """
    tokens, rows = expected.tokens, expected.rows
    guessed = expected.guessed[k] if hides and not history.foresees else 0.0
    price = history.draft.price if k else 0.0
    whole = _step(history, rows[k]) + price
    if not meanwhile:
        seconds, steps, busy, emitted = wait + whole, 1.0, whole, tokens[k]
    else:
        fits = tokens[meanwhile] - tokens[meanwhile - 1]
        rest = max(0.0, rows[k] - rows[meanwhile]) / max(rows[meanwhile], 1e-9)
        plain, last = meanwhile * _step(history, 0.0) + price, fits * _step(history, rest)
        seconds, steps, busy = max(plain, wait) + last, meanwhile + fits, plain + last
        emitted = meanwhile + fits + tokens[k] - tokens[meanwhile]
    mean_steps = guessed + (1.0 - guessed) * steps
    mean_busy = guessed * whole + (1.0 - guessed) * busy
    return Promise(
        guessed * tokens[k] + (1.0 - guessed) * emitted,
        guessed * whole + (1.0 - guessed) * seconds,
        meanwhile,
        history.other_tokens * mean_steps / mean_busy,
    )


def _step(history: History, drafts: float) -> float:
    """Seconds of a step in which the request has so many drafts."""
    assert history.verify is not None
    rows = history.other_rows + 1.0 + drafts
    return history.other_seconds + history.verify.of(rows, rows * history.committed)


def _rate(each: Promise) -> float:
    return each.rate
