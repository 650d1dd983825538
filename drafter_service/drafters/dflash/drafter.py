"""Drafts a block in one pass, from what the target's hidden states say of the text so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.drafting.drafter import DraftingError, DraftJob, within
from cluster.drafting.features import FeaturesInfo
from cluster.kernels.packed import PackedLinear, pack
from cluster.speculation.messages import DraftBlock, SessionSpec
from drafter_service.drafters.dflash.loading import Borrowed
from drafter_service.drafters.dflash.model import BlockDiffusionModel, Context
from drafter_service.drafters.drawing import drawing


@dataclass(slots=True)
class _Session:
    """tokens: how many are committed; anchor: the last of them; context: of those before it."""

    spec: SessionSpec
    tokens: int
    anchor: int
    context: Context


class BlockDiffusionDrafter:
    """A DFlash or DFlash 2 network. It needs the fused features of every committed token but the last, which
    come with the jobs; where some are missing it has nothing to say.

    On a CPU in float32 the network's products are our own kernels from here on: a block has too few rows for
    torch's. model, revision: of the drafter's checkpoint; features: what it reads; vocab_size: ids of the
    tokenizer, padding rows of the head beyond it are never proposed; context: positions that the target can
    see.
    """

    certain = False

    def __init__(
        self,
        network: BlockDiffusionModel,
        borrowed: Borrowed,
        name: str,
        revision: str,
        features: FeaturesInfo,
        context: int,
        vocab_size: int,
    ) -> None:
        self.model, self.revision = name, revision
        self.features: FeaturesInfo | None = features
        self.kind = "dflash2" if network.config.selects else "dflash"
        self.context = context
        self.longest = network.config.block_size - 1
        self._network, self._borrowed, self._vocab_size = network, borrowed, vocab_size
        self._layers = len(network.layers)
        self._memory = network.config.memory
        self._sessions: dict[int, _Session] = {}
        weight = borrowed.head
        self._head: Callable[[Tensor], Tensor] = partial(F.linear, weight=weight)
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            pack(network)
            self._head = PackedLinear(weight, None)

    def open(self, spec: SessionSpec) -> None:
        self._sessions[spec.sequence] = _Session(
            spec, len(spec.prompt_ids), spec.prompt_ids[-1], Context(self._layers)
        )

    def close(self, sequence: int) -> None:
        self._sessions.pop(sequence, None)

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        return [self._draft(self._sessions[job.sequence], job) for job in jobs]

    @torch.inference_mode()
    def _draft(self, session: _Session, job: DraftJob) -> DraftBlock:
        if job.committed:
            session.tokens += len(job.committed)
            session.anchor = job.committed[-1]
        try:
            if job.fused is not None and len(job.fused):
                weight = self._network.norm.weight
                self._network.extend(session.context, job.fused.to(weight.device, weight.dtype)[None])
                if self._memory:
                    # The block's own rows see the last of them less far than one before it.
                    session.context.keep_last(self._memory - 1)
            length = within(self.context, session.tokens, job.length, self.longest)
            # After a guess there are no features.
            if length < 1 or job.guess or session.context.length != session.tokens - 1:
                return DraftBlock()
            return self._block(session, length, job)
        except (RuntimeError, ValueError) as error:
            raise DraftingError(f"{self.model}: {error}") from error

    def _block(self, session: _Session, length: int, job: DraftJob) -> DraftBlock:
        network, borrowed = self._network, self._borrowed
        embedding = borrowed.embedding
        ids = torch.full((length + 1,), network.config.mask_id, device=embedding.device)
        ids[0] = session.anchor
        embedded = F.embedding(ids, embedding)[None] * network.config.embedding_scale
        at = torch.arange(session.context.length, session.context.length + length + 1, device=ids.device)
        rows = network(embedded, at[None], session.context)[0, 1:]
        logits = self._logits(rows)
        draw = drawing(session.spec, session.tokens, job.width)
        if network.candidate_selector is None:
            for row in self._over_vocabulary(logits):
                if not draw.next(row, job.stop_below):
                    break
            return draw.block()
        selector, before = network.candidate_selector, session.anchor
        unary, places = logits.topk(selector.top_k, dim=-1)
        candidates = places if borrowed.draft_ids is None else borrowed.draft_ids[places]
        for k in range(length):
            after = torch.tensor([before], device=rows.device)
            scores = selector.scores(rows[k : k + 1], unary[k : k + 1], candidates[k : k + 1], after)[0]
            row = scores.new_full((self._vocab_size,), float("-inf"), dtype=torch.float32)
            kept = candidates[k] < self._vocab_size
            row[candidates[k][kept]] = scores[kept].float()
            if not draw.next(row, job.stop_below):
                break
            before = draw.tokens[-1]
        return draw.block()

    def _logits(self, rows: Tensor) -> Tensor:
        """[g, d] -> [g, Vd], in the weights' precision."""
        config = self._network.config
        logits = self._head(rows) * config.output_multiplier
        if config.softcap > 0.0:
            logits = torch.tanh(logits / config.softcap) * config.softcap
        if self._borrowed.draft_ids is None:
            # Padding is never proposed.
            logits[:, self._vocab_size :] = float("-inf")
        return logits

    def _over_vocabulary(self, logits: Tensor) -> Tensor:
        """[g, Vd] -> float32 [g, vocab_size], minus infinity where nothing can be drafted."""
        ids = self._borrowed.draft_ids
        if ids is None:
            return logits[:, : self._vocab_size].float()
        every = logits.new_full((len(logits), self._vocab_size), float("-inf"), dtype=torch.float32)
        every[:, ids] = logits.float()
        return every
