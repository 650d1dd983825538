"""From tokens to text as they are committed, and where a stop string ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class _Token:
    id: int
    # Characters of text up to this token's end; None while its bytes are an unfinished character.
    end: int | None


class TextStream:
    """UTF-8 safe text of a growing answer; text that may be the start of a stop string is held back.

    Text and tokens are released together, so that what was released can be continued from its tokens alone;
    what a stop string leaves of the token that it begins in comes apart, at the end.
    tokenizer: a fast tokenizer; stop: strings, each at least one character; resumed: tokens that the answer
    begins with and that were released before; least: tokens, the resumed ones included, that no stop string
    cuts into.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: tuple[str, ...],
        resumed: Sequence[int] = (),
        least: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._longest_stop = max(map(len, stop), default=0)
        self._text = ""
        self._tokens: list[_Token] = []
        self._released_text = 0
        self._released_tokens = 0
        self._least = least
        self._resumed = len(resumed)
        self.stopped = False
        for token in resumed:
            self._add(token)
        self._released_tokens = len(self._tokens)
        self._released_text = len(self._text)

    @property
    def token_count(self) -> int:
        """Tokens of the answer that were pushed; fewer once a stop string has cut it."""
        return len(self._tokens) - self._resumed

    @property
    def released(self) -> int:
        """Tokens of the answer that were released."""
        return self._released_tokens - self._resumed

    def push(self, token: int) -> bool:
        """Adds a token; True if it completes a stop string, which is then cut off together with
        every token that contributed to it."""
        before = len(self._text)
        self._add(token)
        return self._cut(before)

    def finish(self) -> bool:
        """The answer ends here, perhaps in the middle of a character; True if what stands for that completes
        a stop string."""
        before = len(self._text)
        if self.token_count:
            self._text = self._whole_text()
            self._settle()
        return self._cut(before)

    def _cut(self, before: int) -> bool:
        """Whether a stop string is complete that was not in so many characters."""
        searched = max(0, before - self._longest_stop + 1, self._protected())
        if searched >= len(self._text):
            return False
        found = [at for stop in self._stop if (at := self._text.find(stop, searched)) >= 0]
        if found:
            self._text = self._text[: min(found)]
            while self._tokens and (self._tokens[-1].end or 0) > len(self._text):
                self._tokens.pop()
            self.stopped = True
        return self.stopped

    def _add(self, token: int) -> None:
        piece = self._stream.step(self._tokenizer.backend_tokenizer, token)
        self._tokens.append(_Token(token, None))
        if piece is None:
            return
        self._text += piece
        self._settle()

    def _settle(self) -> None:
        """The text of all tokens is there."""
        for entry in reversed(self._tokens):
            if entry.end is not None:
                break
            entry.end = len(self._text)

    def _protected(self) -> int:
        """Length of the text in which no stop string is looked for."""
        count = min(max(self._least, self._resumed), len(self._tokens))
        if not count:
            return 0
        end = self._tokens[count - 1].end
        return len(self._text) if end is None else end

    def release(self, final: bool = False) -> tuple[str, tuple[int, ...]]:
        """Text and tokens that are final and were not released before; with `final`, of an answer that was
        finished or stopped, all that is left but the remainder."""
        until = len(self._text) if final else len(self._text) - self._held_back()
        count = len(self._tokens)
        while not final and count > self._released_tokens:
            end = self._tokens[count - 1].end
            if end is not None and end <= until:
                break
            count -= 1
        if not final or self.stopped:
            until = (self._tokens[count - 1].end or 0) if count else 0
        text = self._text[self._released_text : until]
        tokens = tuple(entry.id for entry in self._tokens[self._released_tokens : count])
        self._released_text, self._released_tokens = max(until, self._released_text), count
        return text, tokens

    def remainder(self) -> str:
        """What a stop string left of a token that is none of the answer's; after all was released."""
        return self._text[self._released_text :] if self.stopped else ""

    def _whole_text(self) -> str:
        whole = self._tokenizer.decode([entry.id for entry in self._tokens], skip_special_tokens=True)
        return whole if isinstance(whole, str) and whole.startswith(self._text) else self._text

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        for length in range(min(self._longest_stop - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stop):
                return length
        return 0
