"""Which tokens a grammar allows after each prefix of a block, by llguidance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

# A row of the parser has an item or more for each optional property that may come next. Errors say nothing of
# the text, and go to whoever asked, not to standard error.
_LIMITS = LLParserLimits(max_items_in_row=20_000, verbose_errors=False)
_SILENT = 0
_SHORTENED = "<non-verbose/>"


class GrammarError(ValueError):
    """A grammar that cannot be followed; one sentence."""


class OutsideGrammarError(GrammarError):
    """A token that the grammar does not allow where it is."""


class Grammars:
    """Makes constraints for one target. vocab_size: of its rows; ends: the model's ends of sequence.

    The tokenizer is read when the first grammar comes, which takes about a second for a large vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = ends
        self._read: LLTokenizer | None = None

    def constraint(self, grammar: str) -> GrammarConstraint:
        """grammar: as llguidance writes it. Raises GrammarError."""
        if self._read is None:
            ends = sorted(self._ends) or None
            self._read = from_tokenizer(self._tokenizer, self._vocab_size, ends)  # type: ignore[arg-type]
        return GrammarConstraint(
            LLMatcher(self._read, grammar, log_level=_SILENT, limits=_LIMITS), self._vocab_size, self._ends
        )


class GrammarConstraint:
    """Where an answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = ends
        self._check()

    def emit(self, token: int) -> None:
        """One more token of the output. Raises GrammarError; OutsideGrammarError if the token is at fault."""
        if self._matcher.try_consume_tokens([token]) != 1:
            self._check()
            raise OutsideGrammarError(f"token {token} is not in the language of the grammar")

    def allowed(self, path: Sequence[int]) -> Tensor | None:
        """Whether each token may follow the output and `path`: bool [V]. None where no answer comes by:
        a token of the path is not allowed, or ends the answer. Raises GrammarError."""
        if not self._ends.isdisjoint(path):
            return None
        consumed = self._matcher.try_consume_tokens(list(path))
        try:
            if consumed < len(path):
                return None
            if self._matcher.is_stopped():
                # All is said.
                mask = torch.zeros(self._vocab_size, dtype=torch.bool)
            else:
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
                unpacked = np.unpackbits(bits, bitorder="little")[: self._vocab_size]
                mask = torch.zeros(self._vocab_size, dtype=torch.bool)
                mask[: len(unpacked)] = torch.from_numpy(unpacked.astype(bool))
            if self._matcher.is_accepting():
                mask[list(self._ends)] = True
            self._check()
            return mask
        finally:
            if consumed:
                self._matcher.rollback(consumed)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(" ".join(self._matcher.get_error().removesuffix(_SHORTENED).split()))
