"""What lossy laws do to answers: tasks with one right answer, and open ones.

Every token is drafted, by the short-sighted drafter, and decided by the shipped `verify`: one draft a round
and no bonus token, so that what is seen is the law's own output and not a mixture with the target's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cluster.bench.encoding import chat, prompting
from cluster.bench.lossy.drafters import SHORT_SIGHTED, window
from cluster.bench.lossy.exact import TRUNCATIONS
from cluster.bench.lossy.tasks import TASKS, Task
from cluster.bench.statistics import Mean, mean_interval
from cluster.kernels.attention import PAGE
from cluster.speculation.catalogue import parse
from cluster.speculation.law import REJECTION, Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import pack, truncate
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.build import LoadedTarget
from verifier_service.cache.kv_cache import SequenceCache
from verifier_service.target.target import Rows
from verifier_service.verification import verify
from verifier_service.verification.truncation import truncated

# A repetition is an n-gram of this length that occurred earlier in the answer.
_GRAM = 3


def _whole(row: Tensor) -> Tensor:
    return row


def _within(law: Law) -> Callable[[Tensor], Tensor]:
    """The truly truncated target, which a strict law then serves exactly."""
    return lambda row: truncated(law, row, float(row.double().sum()))


@dataclass(frozen=True, slots=True)
class Contestant:
    """law: verifies; target: from the model's row p to the row that is verified against; baseline: the name
    of the contestant that it is compared with."""

    name: str
    law: Law
    target: Callable[[Tensor], Tensor] = _whole
    baseline: str = ""


CONTESTANTS = (
    Contestant("strict", REJECTION),
    Contestant("strict, true min_p", REJECTION, _within(TRUNCATIONS[0])),
    Contestant("truncation:min_p", TRUNCATIONS[0], baseline="strict, true min_p"),
    Contestant("strict, true typical", REJECTION, _within(TRUNCATIONS[1])),
    Contestant("truncation:typical", TRUNCATIONS[1], baseline="strict, true typical"),
    Contestant(
        "collaborative:lenience 0.5", parse("collaborative:lenience", {"lenience": 0.5}), baseline="strict"
    ),
)


@dataclass(slots=True)
class _Sequence:
    """line: whether the end of a line ends it."""

    prompt: list[int]
    seed: int
    cache: SequenceCache
    line: bool
    tokens: list[int] = field(default_factory=list)
    kept: int = 0
    logprob: float = 0.0
    ended: bool = False

    @property
    def rows(self) -> Rows:
        """What the target has not seen yet."""
        if not self.tokens:
            return Rows(self.cache, self.prompt, 0, 1)
        place = len(self.prompt) + len(self.tokens) - 1
        return Rows(self.cache, self.tokens[-1:], place, 1)


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer.

    exact: its first line, quotation marks left out, is the right answer; repetition: share of its trigrams
    that it had had before; logprob: mean log-probability of its tokens, its end included, under the whole
    target at temperature 1, in nats; kept: the share of drafts that were kept.
    """

    contestant: str
    kind: str
    text: str
    exact: bool
    repetition: float
    logprob: float
    kept: float


def answer(
    loaded: LoadedTarget, contestant: Contestant, samples: int, tokens: int, tasks: Sequence[Task] = TASKS
) -> list[Answered]:
    """Every task `samples` times, at temperature 1, all at once; at most `tokens` tokens each."""
    encode = prompting(loaded).encode
    asked = [task for task in tasks for _ in range(samples)]
    prompts = [encode(task.prompt) if task.expected else list(chat(loaded, task.prompt)) for task in asked]
    pool = loaded.model.new_pool(sum(len(prompt) + tokens + PAGE for prompt in prompts))
    sequences = [
        _Sequence(prompt, seed, pool.open(), bool(task.expected))
        for seed, (task, prompt) in enumerate(zip(asked, prompts, strict=True))
    ]
    for _ in range(tokens):
        live = [each for each in sequences if not each.ended]
        if not live:
            break
        p = target_probs(torch.cat(loaded.model.forward([each.rows for each in live])), Sampling())
        seen = [window([*each.prompt, *each.tokens]) for each in live]
        drafts = torch.cat(loaded.model.score(seen, 1))
        q = target_probs(drafts, Sampling(temperature=SHORT_SIGHTED.temperature))
        for each, p_row, q_row in zip(live, p, q, strict=True):
            _extend(each, contestant, p_row, q_row)
            last = each.tokens[-1]
            broken = each.line and "\n" in str(loaded.tokenizer.decode([last]))
            each.ended = broken or last in loaded.stop_ids
    return [_judged(contestant, task, each, loaded) for task, each in zip(asked, sequences, strict=True)]


def _extend(each: _Sequence, contestant: Contestant, p: Tensor, q: Tensor) -> None:
    noise = Noise(each.seed, len(each.prompt) + len(each.tokens))
    row = truncate(q)
    draft = DraftField(derive_key(each.seed, Purpose.DRAFT), noise.base).draw(0, row)
    block = DraftBlock((draft,), (max(row.probs),), proposal=pack([row]))
    # The second row decides the bonus token, which is dropped.
    verdict = verify(contestant.law, contestant.target(p).expand(2, -1), block, noise)
    token = verdict.tokens[0]
    each.tokens.append(token)
    each.kept += verdict.accepted
    each.logprob += math.log(max(float(p[token]), torch.finfo(torch.float32).tiny))


def _judged(contestant: Contestant, task: Task, each: _Sequence, loaded: LoadedTarget) -> Answered:
    said = [token for token in each.tokens if token not in loaded.stop_ids]
    text = str(loaded.tokenizer.decode(said)).strip()
    first = text.partition("\n")[0]
    return Answered(
        contestant.name,
        task.kind,
        text,
        bool(task.expected) and first.strip("\"'“” ") == task.expected,
        repetition(said),
        each.logprob / len(each.tokens),
        each.kept / len(each.tokens),
    )


def repetition(tokens: Sequence[int]) -> float:
    """The share of trigrams that came before in the same answer; 0 for an answer without any."""
    grams = [tuple(tokens[k : k + _GRAM]) for k in range(len(tokens) - _GRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """A contestant's means, and under `minus_*` the mean of paired differences from its baseline: the same
    task with the same seed. None without a baseline."""

    contestant: str
    baseline: str
    copy: Mean
    edit: Mean
    repetition: Mean
    logprob: Mean
    kept: float
    minus_copy: Mean | None = None
    minus_edit: Mean | None = None
    minus_repetition: Mean | None = None
    minus_logprob: Mean | None = None


def effects(answers: Sequence[Answered], contestants: Sequence[Contestant] = CONTESTANTS) -> list[Effect]:
    """Exact match on copy and edit tasks, repetition and log-probability on open ones."""
    measures: dict[str, tuple[tuple[str, ...], Callable[[Answered], float]]] = {
        "copy": (("copy",), lambda a: float(a.exact)),
        "edit": (("edit",), lambda a: float(a.exact)),
        "repetition": (("open",), lambda a: a.repetition),
        "logprob": (("open",), lambda a: a.logprob),
    }
    values = {
        (each.name, name): [measure(a) for a in answers if a.contestant == each.name and a.kind in kinds]
        for each in contestants
        for name, (kinds, measure) in measures.items()
    }
    found = []
    for each in contestants:
        means = {name: mean_interval(values[each.name, name]) for name in measures}
        differences = {}
        if each.baseline:
            for name in measures:
                pairs = zip(values[each.name, name], values[each.baseline, name], strict=True)
                differences[f"minus_{name}"] = mean_interval([lossy - true for lossy, true in pairs])
        kept = [a.kept for a in answers if a.contestant == each.name]
        found.append(Effect(each.name, each.baseline, **means, kept=sum(kept) / len(kept), **differences))
    return found
