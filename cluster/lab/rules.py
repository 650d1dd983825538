"""Ways to schedule, to propose and to draw: which of them leave the output law alone, and which do not.

A rule plays the rounds of one request. Verifying the first N drafts is exact under `rejection` and `block`
if N >= k is decided before x_k is drawn; under `coupled` whatever decides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cluster.lab.rounds import Request, first
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.proposal import SparseRow, unpack

STRICT = ("coupled", "rejection", "block")
# A probability that counts as low, in vocabularies of two or three tokens.
_LOW = 0.45
# An entropy that counts as high there, in nats.
_UNCERTAIN = 0.6
# Verify steps a second with no, one and two drafts: DSpark, arXiv 2607.05147, appendix A.
SPEEDS = (1.0, 0.5, 0.45)


@dataclass(frozen=True, slots=True)
class Rule:
    """kind: "schedule", "proposal" or "noise"; play: emits tokens of a request; biased: the laws that it
    biases; laws: those that it can be played under; twice: whether it draws two blocks, so that its outcomes
    are too many in all but the smallest worlds."""

    name: str
    kind: str
    play: Callable[[Request], None]
    biased: tuple[str, ...] = ()
    laws: tuple[str, ...] = STRICT
    twice: bool = False


def _commit(request: Request, verdict: Verdict) -> None:
    request.tokens += verdict.tokens


def own(block: DraftBlock, vocab: int) -> list[float]:
    """Each drafted token's own probability under its proposal."""
    rows = unpack(block, vocab)
    return [row.probs[row.ids.index(token)] for row, token in zip(rows, block.tokens, strict=True)]


def _leading(flags: list[bool]) -> int:
    return flags.index(False) if False in flags else len(flags)


def _stopping(length: Callable[[DraftBlock, int], int]) -> Callable[[Request], None]:
    """Verifies the first length(block, vocab) drafts."""

    def play(request: Request) -> None:
        block = request.draft()
        _commit(request, request.verify(first(block, length(block, request.world.vocab))))

    return play


def _whole(block: DraftBlock, vocab: int) -> int:
    return len(block.tokens)


def _before_a_flat_row(block: DraftBlock, vocab: int) -> int:
    return _leading([largest >= _LOW for largest in block.max_q])


def _before_an_uncertain_row(block: DraftBlock, vocab: int) -> int:
    entropies = [-sum(q * math.log(q) for q in row.probs if q > 0.0) for row in unpack(block, vocab)]
    return _leading([entropy <= _UNCERTAIN for entropy in entropies])


def _survival(values: list[float], least: float) -> int:
    """How many leading values have a product of at least `least`."""
    product = 1.0
    for k, value in enumerate(values):
        product *= value
        if product < least:
            return k
    return len(values)


def _by_survival_of_rows(block: DraftBlock, vocab: int) -> int:
    return _survival(list(block.max_q), _LOW)


def _after_an_unlikely_token(block: DraftBlock, vocab: int) -> int:
    return min(_leading([q >= _LOW for q in own(block, vocab)]) + 1, len(block.tokens))


def _before_an_unlikely_token(block: DraftBlock, vocab: int) -> int:
    return _leading([q >= _LOW for q in own(block, vocab)])


def _by_survival_of_tokens(block: DraftBlock, vocab: int) -> int:
    return _survival(own(block, vocab), _LOW**2)


def _looking_one_token_ahead(block: DraftBlock, vocab: int) -> int:
    likely = [q >= _LOW for q in own(block, vocab)]
    return _leading([*likely[1:], True])


def goodputs(confidences: list[float]) -> list[float]:
    """Expected tokens a second of verifying 0, 1, 2 drafts."""
    values, survival, expected = [SPEEDS[0]], 1.0, 1.0
    for speed, confidence in zip(SPEEDS[1:], confidences, strict=False):
        survival *= confidence
        expected += survival
        values.append(expected * speed)
    return values


def best_goodput(confidences: list[float]) -> int:
    """The global maximum: whether x_1 is verified can depend on a confidence that x_1 itself decided."""
    values = goodputs(confidences)
    return values.index(max(values))


def first_drop_of_goodput(confidences: list[float]) -> int:
    """The last length before goodput first falls; each step uses what was known before its token."""
    values = goodputs(confidences)
    return next((k for k in range(len(values) - 1) if values[k + 1] < values[k]), len(values) - 1)


def _is_late(request: Request, block: DraftBlock) -> bool:
    """A block that begins with the last token of the vocabulary is nine times as often late as in time."""
    rare = block.tokens[0] == request.world.vocab - 1
    return rare and request.run.choose((0.1, 0.9)) == 1


def _drop_late(request: Request) -> None:
    block = request.draft()
    _commit(request, request.verify(DraftBlock() if _is_late(request, block) else block))


def _drop_at_random(request: Request) -> None:
    block = request.draft()
    lost = request.run.choose((0.5, 0.5)) == 1
    _commit(request, request.verify(DraftBlock() if lost else block))


def _fresh_noise_without_a_draft(request: Request) -> None:
    block = request.draft()
    if _is_late(request, block):
        request.tokens += (request.run.choose(request.world.target(request.tokens)),)
    else:
        _commit(request, request.verify(block))


def _longest_of_two(request: Request) -> None:
    verdicts = [request.verify(request.draft(which), seed=which) for which in (0, 1)]
    _commit(request, max(verdicts, key=lambda verdict: verdict.accepted))


def _surest_of_two(request: Request) -> None:
    blocks = [request.draft(which) for which in (0, 1)]
    _commit(request, request.verify(max(blocks, key=lambda block: own(block, request.world.vocab)[0])))


def _recorded(change: Callable[[SparseRow], SparseRow]) -> Callable[[Request], None]:
    def play(request: Request) -> None:
        _commit(request, request.verify(request.draft(recorded=change)))

    return play


def _sharpened(row: SparseRow) -> SparseRow:
    return SparseRow(row.ids, tuple(weight ** (1.0 / 0.7) for weight in row.weights))


def _in_four_bits(row: SparseRow) -> SparseRow:
    return SparseRow(row.ids, tuple(max(1, round(15.0 * weight)) / 15.0 for weight in row.weights))


def _corrected_from_the_target(request: Request) -> None:
    block = request.draft()
    verdict = request.verify(block)
    tokens = verdict.tokens
    if verdict.accepted < len(block.tokens):
        kept = block.tokens[: verdict.accepted]
        tokens = (*kept, request.run.choose(request.world.target((*request.tokens, *kept))))
    request.tokens += tokens


def _draft_noise_used_again(request: Request) -> None:
    """Two rounds whose drafts are keyed by the absolute position alone."""
    for _ in range(2):
        _commit(request, request.verify(request.draft(key_base=0)))


def _two_rounds(request: Request) -> None:
    for _ in range(2):
        _commit(request, request.verify(request.draft()))


_BOTH = ("rejection", "block")

RULES: tuple[Rule, ...] = (
    Rule("fixed block", "schedule", _stopping(_whole)),
    Rule("stop before a row whose max q is low", "schedule", _stopping(_before_a_flat_row)),
    Rule("stop before a row whose entropy is high", "schedule", _stopping(_before_an_uncertain_row)),
    Rule("stop by the product of max q's", "schedule", _stopping(_by_survival_of_rows)),
    Rule("stop after a token whose own q is low", "schedule", _stopping(_after_an_unlikely_token)),
    Rule(
        "stop at the first drop of goodput",
        "schedule",
        _stopping(lambda block, vocab: first_drop_of_goodput(list(block.max_q))),
    ),
    Rule("lose blocks by chance", "schedule", _drop_at_random),
    Rule("drop a token whose own q is low", "schedule", _stopping(_before_an_unlikely_token), _BOTH),
    Rule("survival product of the tokens' own q's", "schedule", _stopping(_by_survival_of_tokens), _BOTH),
    Rule("drop x_k after seeing x_k+1", "schedule", _stopping(_looking_one_token_ahead), _BOTH),
    Rule(
        "length of the best goodput",
        "schedule",
        _stopping(lambda block, vocab: best_goodput(list(block.max_q))),
        _BOTH,
    ),
    Rule("drop a block that its content made late", "schedule", _drop_late, _BOTH),
    Rule("best of two drafts, by accepted length", "schedule", _longest_of_two, _BOTH, twice=True),
    Rule("best of two drafts, by the drafter's q", "schedule", _surest_of_two, _BOTH, twice=True),
    Rule("q drawn at T=1, recorded at T=0.7", "proposal", _recorded(_sharpened), _BOTH),
    Rule("q drawn in full, recorded in 4 bits", "proposal", _recorded(_in_four_bits), _BOTH),
    Rule("correction drawn anew from p", "noise", _corrected_from_the_target, STRICT),
    Rule(
        "fresh noise where a late block was dropped",
        "noise",
        _fresh_noise_without_a_draft,
        ("coupled",),
        laws=("coupled",),
    ),
    Rule("two rounds, noise new in each", "noise", _two_rounds, twice=True),
    Rule(
        "two rounds, draft noise keyed by position", "noise", _draft_noise_used_again, ("block",), twice=True
    ),
)
