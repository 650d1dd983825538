"""What a drafter would have been accepted on texts that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cluster.drafting import NgramDrafter
from cluster.drafting.drafter import DraftJob
from cluster.speculation.law import Law
from cluster.speculation.messages import SessionSpec
from cluster.speculation.sampling import Sampling
from drafter_service.drafters.dflash.model import BlockDiffusionModel
from drafter_service.training.blocks import anchors_of, blocks_at
from drafter_service.training.corpus import Text
from drafter_service.training.network import Frozen, greedy_drafts

_BLOCKS_AT_ONCE = 64


@dataclass(slots=True)
class Accepted:
    """Pooled over rounds that had a draft; emitted: accepted ones and the target's own tokens."""

    rounds: int = 0
    emitted: int = 0
    undrafted: int = 0

    @property
    def length(self) -> float:
        """Tokens emitted in a round that had a draft; 0 without any."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def overall(self) -> float:
        """Tokens emitted in a round, undrafted ones included; 0 without any."""
        rounds = self.rounds + self.undrafted
        return (self.emitted + self.undrafted) / rounds if rounds else 0.0

    def add(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.rounds += 1
            self.emitted += accepted + 1
        else:
            self.undrafted += 1


def walk(text: Text, drafts: Callable[[int], Sequence[int]], into: Accepted) -> None:
    """Decodes a greedy text as speculation would: round after round, each from the token that the last one
    ended with. drafts: those after an anchor."""
    tokens = text.tokens.tolist()
    at = text.prompt
    while at < len(tokens) - 1:
        block = list(drafts(at))[: len(tokens) - 1 - at]
        right = 0
        while right < len(block) and block[right] == tokens[at + 1 + right]:
            right += 1
        into.add(len(block), right)
        at += right + 1


@torch.inference_mode()
def by_domain(model: BlockDiffusionModel, frozen: Frozen, texts: Sequence[Text]) -> dict[str, Accepted]:
    """texts: greedy ones."""
    found: dict[str, Accepted] = {}
    for text in texts:
        anchors = list(anchors_of(text))
        drafted: dict[int, list[int]] = {}
        for first in range(0, len(anchors), _BLOCKS_AT_ONCE):
            some = anchors[first : first + _BLOCKS_AT_ONCE]
            blocks = blocks_at([text], [some], model.config.block_size, model.config.mask_id)
            drafted.update(zip(some, greedy_drafts(model, frozen, blocks)[0].tolist(), strict=True))
        if anchors:
            walk(text, drafted.__getitem__, found.setdefault(text.domain, Accepted()))
    return found


def ngram_by_domain(texts: Sequence[Text], length: int) -> dict[str, Accepted]:
    """The same with n-gram drafts of at most `length` tokens."""
    found: dict[str, Accepted] = {}
    for text in texts:
        tokens = tuple(text.tokens.tolist())
        drafter, done = NgramDrafter(), text.prompt

        def drafts(at: int) -> Sequence[int]:
            nonlocal done
            job = DraftJob(0, tokens[done : at + 1], length)  # noqa: B023 - called before the next text
            done = at + 1
            return drafter.draft([job])[0].tokens  # noqa: B023

        drafter.open(SessionSpec(0, tokens[:done], Sampling(temperature=0.0), Law("coupled"), 0))
        if len(tokens) > text.prompt + 1:
            walk(text, drafts, found.setdefault(text.domain, Accepted()))
    return found


def pooled(domains: dict[str, Accepted]) -> Accepted:
    """Over all domains."""
    return Accepted(
        sum(each.rounds for each in domains.values()),
        sum(each.emitted for each in domains.values()),
        sum(each.undrafted for each in domains.values()),
    )
