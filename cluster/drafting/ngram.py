"""Draws drafts from the text itself: the longest suffix of prompt and output that occurred before."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.drafting.drafter import DraftJob
from cluster.drafting.features import FeaturesInfo
from cluster.speculation.messages import DraftBlock, Forecast, Outcome, SessionSpec

# Of a forecast: what would be sent with more is worth less than what it costs.
_MOST_OUTCOMES = 64

# Earlier matches, the latest ones, that a tree is made of.
_MATCHES = 64


class _Text:
    """A sequence's tokens with an index of where each n-gram of the minimal length ended, and of the tokens
    that complete one."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.tokens: list[int] = []
        # n-gram -> positions after its occurrences, oldest first.
        self.ends: dict[tuple[int, ...], list[int]] = {}
        # All but the last token of an n-gram -> its last tokens, in the order in which they first occurred.
        self.followers: dict[tuple[int, ...], dict[int, None]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            if end >= self.minimum:
                gram = tuple(self.tokens[end - self.minimum :])
                self.ends.setdefault(gram, []).append(end)
                self.followers.setdefault(gram[:-1], {})[token] = None

    def shorten(self, count: int) -> None:
        """Takes back the last tokens."""
        for _ in range(count):
            end = len(self.tokens)
            if end >= self.minimum:
                # The latest end of its n-gram is this one.
                gram = tuple(self.tokens[end - self.minimum :])
                self.ends[gram].pop()
                if not self.ends[gram]:
                    del self.ends[gram], self.followers[gram[:-1]][gram[-1]]
            self.tokens.pop()

    def completions(self) -> list[int]:
        """Tokens after which there would be a match."""
        beginning = tuple(self.tokens[len(self.tokens) - self.minimum + 1 :])
        return list(self.followers.get(beginning, ()))

    def longest_match(self, maximum: int) -> tuple[int, int]:
        """(end, length) of the latest among the longest earlier matches of the suffix; (0, 0) without."""
        tokens, size = self.tokens, len(self.tokens)
        best_end, best_length = 0, 0
        if size < self.minimum:
            return best_end, best_length
        for end in reversed(self.ends[tuple(tokens[size - self.minimum :])][:-1]):
            length = self._length(end, maximum)
            if length > best_length:
                best_end, best_length = end, length
            if best_length == maximum:
                break
        return best_end, best_length

    def matches(self, maximum: int) -> list[tuple[int, int]]:
        """(end, length) of earlier matches of the suffix, the longest first, of these the latest."""
        size = len(self.tokens)
        if size < self.minimum:
            return []
        ends = self.ends[tuple(self.tokens[size - self.minimum :])][-_MATCHES - 1 : -1]
        return sorted(((end, self._length(end, maximum)) for end in reversed(ends)), key=_by_length)

    def _length(self, end: int, maximum: int) -> int:
        tokens, size, length = self.tokens, len(self.tokens), self.minimum
        while length < min(maximum, end) and tokens[end - length - 1] == tokens[size - length - 1]:
            length += 1
        return length

    def continuation(self, end: int, length: int) -> list[int]:
        """What followed an occurrence that ended there. The copy may run into itself: a period shorter than
        `length` repeats."""
        period = len(self.tokens) - end
        copy: list[int] = []
        for offset in range(length):
            copy.append(self.tokens[end + offset] if offset < period else copy[offset - period])
        return copy


def _by_length(match: tuple[int, int]) -> int:
    return -match[1]


class NgramDrafter:
    """Longest-suffix lookup. Deterministic, so its proposals are one-hot.

    minimum: tokens that must match before anything is proposed; maximum: where matching stops;
    growth: drafts proposed per matched token, so that a short match risks a short block
    (after suffix decoding, Oliaro et al., arXiv 2411.04975, section 4).
    """

    model = "ngram"
    revision = ""
    kind = "ngram"
    context = 0
    certain = True
    longest = 0
    features: FeaturesInfo | None = None

    def __init__(self, minimum: int = 3, maximum: int = 16, growth: float = 1.0) -> None:
        self.repeats = minimum
        self._maximum = maximum
        self._growth = growth
        self._texts: dict[int, _Text] = {}

    def open(self, spec: SessionSpec) -> None:
        text = _Text(self.repeats)
        text.extend(spec.prompt_ids)
        self._texts[spec.sequence] = text

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob) -> DraftBlock:
        text = self._texts[job.sequence]
        text.extend(job.committed)
        return self._chain(text, job.length) if job.width == 1 else self._tree(text, job.length, job.width)

    def foresee(self, job: DraftJob) -> Forecast:
        """As `Foreseer`. There is a match only after a token that once completed an n-gram."""
        text = self._texts[job.sequence]
        text.extend(job.committed)
        outcomes: list[Outcome] = []
        for kept in range(len(job.guess) + 1):
            known = job.guess[kept : kept + 1]
            others = [token for token in text.completions() if token not in known]
            for token in others[: _MOST_OUTCOMES - len(outcomes)]:
                text.extend((token,))
                outcomes.append(Outcome(kept, token, self._chain(text, job.length)))
                text.shorten(1)
            if len(outcomes) == _MOST_OUTCOMES:
                text.shorten(kept)
                return Forecast(tuple(outcomes))
            text.extend(known)
        text.shorten(len(job.guess))
        return Forecast(tuple(outcomes), exhaustive=True)

    def _chain(self, text: _Text, most: int) -> DraftBlock:
        end, matched = text.longest_match(self._maximum)
        drafts = text.continuation(end, min(most, int(matched * self._growth)))
        return DraftBlock(tuple(drafts), (1.0,) * len(drafts))

    def _tree(self, text: _Text, most: int, width: int) -> DraftBlock:
        """What followed several occurrences, joined where they begin alike; the first is the chain's."""
        tokens: list[int] = []
        parents: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for end, matched in text.matches(self._maximum):
            here = -1
            for token in text.continuation(end, min(most, int(matched * self._growth))):
                known = children.get((here, token))
                if known is None:
                    if len(tokens) == most * width or parents.count(here) == width:
                        break
                    known = children[here, token] = len(tokens)
                    tokens.append(token)
                    parents.append(here)
                here = known
        chain = parents == [*range(-1, len(tokens) - 1)]
        return DraftBlock(tuple(tokens), (1.0,) * len(tokens), None if chain else tuple(parents))

    def close(self, sequence: int) -> None:
        self._texts.pop(sequence, None)
