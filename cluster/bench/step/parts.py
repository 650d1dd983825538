"""Where the time of one verify step goes: the forward, what turns logits into tokens, and the engine around.

Blocks are drafted by the target itself at temperature 1, so that nearly all rows of a step are walked: under
`coupled` every draft is accepted, under the laws that take proposals the rows are truncated as they are sent.
"""

from __future__ import annotations

import cProfile
import inspect
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

import torch
from torch import Tensor

from cluster.bench.encoding import prompting
from cluster.bench.prompts import VARIED
from cluster.kernels.attention import PAGE
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import pack, truncate
from cluster.speculation.race import winners
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.build import LoadedTarget
from verifier_service.cache.kv_cache import SequenceCache
from verifier_service.target.target import Rows, TargetModel
from verifier_service.verification import verify_together

# Temperature 1 without truncation.
_WHOLE = Sampling()


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step, medians. forward: 0 without a model; noise: the part of `verification` that is
    spent on random numbers and, under `coupled`, on who wins by them; accepted: drafts in all.
    """

    law: str
    forward: float
    transforms: float
    verification: float
    noise: float
    accepted: int

    @property
    def deciding(self) -> float:
        """From logits to tokens."""
        return self.transforms + self.verification


@dataclass(frozen=True, slots=True)
class Drafted:
    """A sequence before a step. text: committed tokens; block: what follows."""

    text: list[int]
    block: DraftBlock
    noise: Noise


def texts(loaded: LoadedTarget, sequences: int, context: int) -> list[list[int]]:
    """So many stretches of the project's own prompts, of `context` tokens each."""
    whole = prompting(loaded).encode("\n\n".join(VARIED))
    endless = whole * (2 + (context + 7 * sequences) // len(whole))
    return [endless[7 * i : 7 * i + context] for i in range(sequences)]


class Workload:
    """Sequences with their caches, filled once and then used by every law."""

    def __init__(self, target: TargetModel, texts: Sequence[list[int]], rows: int) -> None:
        self._target = target
        self._texts = texts
        self._drafts = rows - 1
        pool = target.new_pool(sum(len(text) + rows + PAGE for text in texts))
        self._caches = [pool.open() for _ in texts]
        for text, cache in zip(texts, self._caches, strict=True):
            target.forward([Rows(cache, text[:-1], 0, 0)])

    def close(self) -> None:
        """Frees the caches."""
        for cache in self._caches:
            cache.release()

    def measure(self, law: Law, repeats: int) -> Parts:
        """The parts of a step under this law."""
        drafted = self._drafted(law)
        batch = [
            self._rows(cache, [each.text[-1], *each.block.tokens], len(each.text) - 1)
            for each, cache in zip(drafted, self._caches, strict=True)
        ]
        logits: list[Tensor] = []

        def forward() -> None:
            logits[:] = self._target.forward(batch)

        seconds = _median(forward, repeats)
        return decided(law, logits, [(each.block, each.noise) for each in drafted], repeats, seconds)

    def _drafted(self, law: Law) -> list[Drafted]:
        """The blocks of a drafter that is the target, token by token."""
        made: list[list[int]] = [[] for _ in self._texts]
        rows: list[list[Tensor]] = [[] for _ in self._texts]
        for k in range(self._drafts):
            batch = [
                self._rows(cache, (made[i][-1:] or text[-1:]), len(text) - 1 + k)
                for i, (text, cache) in enumerate(zip(self._texts, self._caches, strict=True))
            ]
            probs = target_probs(torch.cat(self._target.forward(batch)), _WHOLE)
            for i, row in enumerate(probs):
                made[i].append(_draw(law, row, i, len(self._texts[i]), k))
                rows[i].append(row)
        return [
            Drafted(text, _block(law, tokens, drawn), Noise(i, len(text)))
            for i, (text, tokens, drawn) in enumerate(zip(self._texts, made, rows, strict=True))
        ]

    @staticmethod
    def _rows(cache: SequenceCache, tokens: list[int], start: int) -> Rows:
        return Rows(cache, tokens, start, len(tokens))


def without_model(law: Law, sequences: int, rows: int, vocab: int, repeats: int) -> Parts:
    """The same from random logits, as peaked as a language model's, for a vocabulary of any size."""
    generator = torch.Generator().manual_seed(0)
    logits, cases = [], []
    for i in range(sequences):
        logits.append(3.0 * torch.randn(rows, vocab, generator=generator))
        probs = target_probs(logits[-1], _WHOLE)
        tokens = [_draw(law, row, i, 0, k) for k, row in enumerate(probs[:-1])]
        cases.append((_block(law, tokens, list(probs[:-1])), Noise(i, 0)))
    return decided(law, logits, cases, repeats)


def decided(
    law: Law,
    logits: Sequence[Tensor],
    cases: Sequence[tuple[DraftBlock, Noise]],
    repeats: int,
    forward: float = 0.0,
) -> Parts:
    """Times what the engine does with logits, [N+1, V] of each sequence, as it does it."""
    probs: list[Tensor] = []

    def transform() -> None:
        probs[:] = [target_probs(each, _WHOLE) for each in logits]

    def decide() -> list[Verdict]:
        return verify_together(
            [(law, row, block, noise) for row, (block, noise) in zip(probs, cases, strict=True)]
        )

    transforms, verification = _median(transform, repeats), _median(decide, repeats)
    shares = [spent(decide, {"all": verify_together, "noise": _NOISE[law.name]}) for _ in range(repeats)]
    share = statistics.median(each["noise"] / each["all"] for each in shares)
    accepted = sum(verdict.accepted for verdict in decide())
    return Parts(law.name, forward, transforms, verification, share * verification, accepted)


_NOISE: dict[str, Callable[..., object]] = {
    "none": winners,
    "coupled": winners,
    "rejection": Noise.uniform,
    "block": Noise.uniform,
}


def spent(call: Callable[[], object], functions: dict[str, Callable[..., object]]) -> dict[str, float]:
    """Seconds that one call spends in each of some functions, what they call included."""
    profile = cProfile.Profile()
    profile.runcall(call)
    return in_functions(profile, functions)


def in_functions(profile: cProfile.Profile, functions: dict[str, Callable[..., object]]) -> dict[str, float]:
    """Seconds by name, 0.0 for a function that was not called."""
    codes: dict[CodeType, str] = {
        inspect.unwrap(function).__code__: name for name, function in functions.items()
    }
    found = dict.fromkeys(functions, 0.0)
    for entry in profile.getstats():
        if isinstance(entry.code, CodeType) and entry.code in codes:
            found[codes[entry.code]] += entry.totaltime
    return found


def _draw(law: Law, row: Tensor, seed: int, base: int, index: int) -> int:
    """What a drafter with the target's own row would draft."""
    if not LAWS[law.name].sends_rows:
        return Noise(seed, base).field.winner(base + index, row)
    return DraftField(derive_key(seed, Purpose.DRAFT), base).draw(index, truncate(row))


def _block(law: Law, tokens: Iterable[int], rows: Sequence[Tensor]) -> DraftBlock:
    max_q = tuple(float(row.max()) for row in rows)
    proposal = pack([truncate(row) for row in rows]) if rows and LAWS[law.name].sends_rows else None
    return DraftBlock(tuple(tokens), max_q, proposal=proposal)


def _median(call: Callable[[], object], repeats: int) -> float:
    return statistics.median(_times(call, repeats))


def _times(call: Callable[[], object], repeats: int) -> Iterator[float]:
    call()
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        yield time.perf_counter() - began
