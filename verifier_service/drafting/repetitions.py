"""Where a drafter that copies from the text has nothing to copy, which its verifier can tell by itself."""

from __future__ import annotations

from collections.abc import Sequence


class Repetitions:
    """A text, prompt and output, and the n-grams that it has."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._size = self._indexed = 0
        # Hashes of the n-grams of _size tokens, and of one less: two that are equal cost a message.
        self._whole: set[int] = set()
        self._begun: set[int] = set()
        self._again = True, True

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def again(self, size: int) -> tuple[bool, bool]:
        """Whether the last `size` tokens occurred before, and whether they may have after one more token; of
        size 0 they always have."""
        if size != self._size:
            self._size, self._indexed, self._again = size, 0, (True, True)
            self._whole.clear()
            self._begun.clear()
        if size:
            tokens = self._tokens
            for end in range(self._indexed + 1, len(tokens) + 1):
                gram = tuple(tokens[max(0, end - size) : end])
                begun = gram if end < size else gram[1:]
                # Where one token is enough, the next one may be any of the text.
                self._again = _added(self._whole, gram), not begun or _added(self._begun, begun)
            self._indexed = len(tokens)
        return self._again


def _added(seen: set[int], gram: tuple[int, ...]) -> bool:
    """Whether it was there."""
    key = hash(gram)
    known = key in seen
    seen.add(key)
    return known
