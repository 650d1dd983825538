"""The first two tokens of a prompt's answers under a law, sampled by the shipped drafting and verification.

Rows are computed once for each prefix: a continuation then costs its draws and its verdicts alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cluster.checks.goodness import LEAST_EXPECTED
from cluster.speculation.catalogue import LAWS, parse
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import SparseRow, pack, truncate
from cluster.speculation.race import GumbelField
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.target.target import Rows, TargetModel
from verifier_service.verification import verify
from verifier_service.verification.kernel import draw

# Tokens that are looked at, and drafts of a first round.
TOKENS = 2

RECORDED = "q recorded at temperature 1"
RESIDUAL = "residual from p"
LENIENCE = "lenience 0.8 mislabelled strict"
FRESH = "corrections with fresh noise"

Prefix = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """law: what the answer claims; drafter: temperature of the drafts' distribution; fault: "" or one of
    the above, planted."""

    law: str
    drafter: float
    fault: str = ""

    @property
    def key(self) -> str:
        return f"{self.law}/{self.drafter:g}" + (f"/{self.fault}" if self.fault else "")


@dataclass(frozen=True, slots=True)
class Known:
    """Logits [V] after the prompt, under (), and after each first token a that matters, under (a,)."""

    prompt: Prefix
    logits: Mapping[Prefix, Tensor]

    def law(self) -> dict[int, Tensor]:
        """The target's probabilities of two tokens at temperature 1: first token -> float64 [V]."""
        first = torch.softmax(self.logits[()].double(), dim=-1)
        return {
            prefix[0]: first[prefix[0]] * torch.softmax(logits.double(), dim=-1)
            for prefix, logits in self.logits.items()
            if prefix
        }


def look(target: TargetModel, prompt: Prefix, draws: int) -> Known:
    """Runs the target after every first token that is expected often enough to be told apart or that a
    truncated proposal can hold."""
    cache = target.pool.open()
    [root] = target.forward([Rows(cache, prompt, 0, 1)])
    logits: dict[Prefix, Tensor] = {(): root[0]}
    probs = torch.softmax(root[0].double(), dim=-1)
    often = (probs * draws >= LEAST_EXPECTED).nonzero()[:, 0].tolist()
    for token in sorted({*often, *truncate(probs).ids}):
        # The prompt's keys stay; every token is written to the same place after them.
        [row] = target.forward([Rows(cache, [token], len(prompt), 1)])
        logits[token,] = row[0]
    return Known(prompt, logits)


@dataclass(slots=True)
class Sampler:
    """Continuations under a scenario; what depends on the prefix alone is computed once.

    The drafter is the target itself at the scenario's temperature. Blocks hold as many drafts as tokens are
    left, so the row after a last draft decides a third token, which nobody looks at: the prompt's stands
    in for it.
    """

    known: Known
    scenario: Scenario
    _law: Law = field(init=False)
    _targets: dict[Prefix, Tensor] = field(init=False)
    _drawn: dict[Prefix, SparseRow] = field(init=False)
    _recorded: dict[Prefix, SparseRow] = field(init=False)
    _stacks: dict[tuple[Prefix, ...], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self._law = (
            parse("collaborative:lenience", {"lenience": 0.8})
            if scenario.fault == LENIENCE
            else Law(scenario.law)
        )
        self._targets = self._rows(1.0)
        drafts = self._rows(scenario.drafter)
        recorded = self._targets if scenario.fault == RECORDED else drafts
        # Both temperatures keep the order of tokens, so a drawn token is always among those recorded.
        self._drawn = {prefix: truncate(row) for prefix, row in drafts.items()}
        self._recorded = {prefix: truncate(row) for prefix, row in recorded.items()}

    def pair(self, seed: int) -> tuple[int, int | None]:
        """Two tokens of the request with this seed, the second None where the first is not known."""
        emitted: Prefix = ()
        while len(emitted) < TOKENS:
            if emitted not in self._targets:
                return emitted[0], None
            noise = Noise(seed, len(self.known.prompt) + len(emitted))
            block = self._block(emitted, noise)
            prefixes = [emitted]
            for token in block.tokens[:-1]:
                prefixes.append((*prefixes[-1], token))
            verdict = verify(self._law, self._stack((*prefixes, ())), block, noise)
            emitted += self._altered(verdict, block, prefixes, noise).tokens
        return emitted[0], emitted[1]

    def _rows(self, temperature: float) -> dict[Prefix, Tensor]:
        sampling = Sampling(temperature=temperature)
        return {
            prefix: target_probs(logits[None], sampling)[0] for prefix, logits in self.known.logits.items()
        }

    def _block(self, emitted: Prefix, noise: Noise) -> DraftBlock:
        """What the drafter sends: drawn as the shipped drafters draw, by the noise that they are given."""
        if not LAWS[self._law.name].sends_rows:
            return self._coupled_block(emitted, noise)
        draft = DraftField(derive_key(noise.seed, Purpose.DRAFT), noise.base)
        tokens: Prefix = ()
        rows = []
        for index in range(TOKENS - len(emitted)):
            prefix = emitted + tokens
            rows.append(self._recorded[prefix])
            tokens += (draft.draw(index, self._drawn[prefix]),)
        max_q = tuple(max(row.probs) for row in rows)
        return DraftBlock(tokens, max_q, proposal=pack(rows))

    def _coupled_block(self, emitted: Prefix, noise: Noise) -> DraftBlock:
        """Drafts by the verifier's own noise, from truncated rows as well: this law takes any draft."""
        gumbel = GumbelField(derive_key(noise.seed, Purpose.GUMBEL))
        tokens: Prefix = ()
        while len(emitted + tokens) < TOKENS:
            row = self._drawn[emitted + tokens]
            dense = torch.zeros_like(self._targets[()])
            dense[list(row.ids)] = torch.tensor(row.weights)
            tokens += (gumbel.winner(noise.base + len(tokens), dense),)
        return DraftBlock(tokens, (1.0,) * len(tokens))

    def _stack(self, prefixes: tuple[Prefix, ...]) -> Tensor:
        if prefixes not in self._stacks:
            self._stacks[prefixes] = torch.stack([self._targets[prefix] for prefix in prefixes])
        return self._stacks[prefixes]

    def _altered(self, verdict: Verdict, block: DraftBlock, prefixes: list[Prefix], noise: Noise) -> Verdict:
        """The verdict with the scenario's fault in its correction; as it is without one."""
        if self.scenario.fault not in (RESIDUAL, FRESH) or verdict.accepted == len(block.tokens):
            return verdict
        purpose = Purpose.RESIDUAL if self.scenario.fault == RESIDUAL else Purpose.BONUS
        token = draw(self._targets[prefixes[verdict.accepted]], noise.uniform(purpose, 0))
        return replace(verdict, tokens=(*verdict.tokens[:-1], token))
