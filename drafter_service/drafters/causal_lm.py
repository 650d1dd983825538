"""Any causal language model that shares the target's tokenizer, drafting token after token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from cluster.drafting.drafter import DraftingError, DraftJob, within
from cluster.drafting.features import FeaturesInfo
from cluster.speculation.messages import DraftBlock, SessionSpec
from drafter_service.drafters.drawing import drawing

if TYPE_CHECKING:
    # Importing it takes seconds, which a drafter without a model need not spend.
    from transformers import PreTrainedModel


@dataclass(slots=True)
class _Session:
    """tokens: prompt and committed; cached: the tokens whose keys and values the cache holds, of
    which the first `settled` are known to be committed."""

    spec: SessionSpec
    tokens: list[int]
    cache: DynamicCache = field(default_factory=DynamicCache)
    cached: list[int] = field(default_factory=list)
    settled: int = 0

    def forget(self) -> None:
        self.cache, self.cached, self.settled = DynamicCache(), [], 0

    def roll_back(self, tokens: list[int]) -> None:
        """Keep what cache and tokens share, but leave a token to be computed; tokens: committed, and perhaps
        some more."""
        limit = min(len(self.cached), len(tokens) - 1)
        agreed = min(self.settled, limit)
        while agreed < limit and self.cached[agreed] == tokens[agreed]:
            agreed += 1
        surplus = len(self.cached) - agreed
        if surplus:
            self.cache.crop(-surplus)
            del self.cached[agreed:]
        self.settled = min(agreed, len(self.tokens))


class CausalLmDrafter:
    """Draws each token from the model's own distribution after the request's transforms.

    Under `coupled` the draw uses Gumbel noise of the session's key at the token's absolute position, the
    verifier's own, so that draft and target agree as often as their distributions let them; a tree has the
    next to win beside each token, from the same rows, so that it takes no further forward. A law that
    needs proposals gets each token drawn from the truncated row that is sent with it, by noise keyed by
    the round's base. Either way a repeated job has the same block.
    vocab_size: ids of the tokenizer; a model's padding rows beyond it are never proposed. context:
    positions that the model can see; no token beyond them is computed.
    Raises ValueError for a model whose state cannot be rolled back, such as one with linear attention.
    """

    kind = "causal_lm"
    certain = False
    longest = 0
    features: FeaturesInfo | None = None

    def __init__(
        self, model: PreTrainedModel, name: str, revision: str, context: int, vocab_size: int
    ) -> None:
        layers = DynamicCache(config=model.config).layers
        if not all(layer.is_croppable or isinstance(layer, DynamicSlidingWindowLayer) for layer in layers):
            raise ValueError(f"{name} keeps a state that cannot be rolled back after a rejected draft")
        self.model = name
        self.revision = revision
        self._model = model
        self.context = context
        self._vocab_size = vocab_size
        self._embedded = len(cast(Tensor, model.get_input_embeddings().weight))
        self._sessions: dict[int, _Session] = {}

    def open(self, spec: SessionSpec) -> None:
        self._sessions[spec.sequence] = _Session(spec, list(spec.prompt_ids))

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        return [self._draft(self._sessions[job.sequence], job) for job in jobs]

    def close(self, sequence: int) -> None:
        self._sessions.pop(sequence, None)

    def _draft(self, session: _Session, job: DraftJob) -> DraftBlock:
        session.tokens.extend(job.committed)
        tokens = [*session.tokens, *job.guess]
        length = within(self.context, len(tokens), job.length)
        if not length:
            if len(session.tokens) > self.context:
                session.forget()
            return DraftBlock()
        try:
            return self._continue(session, tokens, length, job)
        except Exception as error:
            # Layers may have been extended unevenly.
            session.forget()
            raise DraftingError(f"{self.model}: {error}") from error

    def _continue(self, session: _Session, tokens: list[int], length: int, job: DraftJob) -> DraftBlock:
        session.roll_back(tokens)
        fresh = tokens[len(session.cached) :]
        if max(fresh) >= self._embedded:
            # On a GPU the look-up itself would end the process.
            raise ValueError(f"token {max(fresh)} is not among the model's {self._embedded}")
        session.settled = len(session.tokens)
        draw = drawing(session.spec, len(tokens), job.width)
        while len(draw.tokens) < length:
            if not draw.next(self._logits(session, fresh), job.stop_below):
                break
            fresh = draw.tokens[-1:]
        return draw.block()

    @torch.inference_mode()
    def _logits(self, session: _Session, fresh: list[int]) -> Tensor:
        """Logits after the last of `fresh`: float32 [vocab]; appends them all to the cache."""
        ids = torch.tensor([fresh], device=self._model.device)
        output = self._model(ids, cache=session.cache, use_cache=True, logits_to_keep=1)
        session.cached.extend(fresh)
        logits: Tensor = output.logits[0, -1, : self._vocab_size].float()
        return logits
