"""The start-up check: are a row's logits bitwise the same alone and in any batch, and whoever computed the
pages before it, on this machine?"""

from __future__ import annotations

import torch
from torch import Tensor

from verifier_service.cache.kv_cache import SequenceCache
from verifier_service.cache.prefixes import PageNames
from verifier_service.target.target import Rows, TargetModel

_PROMPT = 64
_BLOCKS = (2, 5, 9, 17)
_STRIDE = 5
_DEPTH = 9
# Rows of a step: kernels choose their ways by the number, and cut work up among threads by it.
_COUNTS = (*range(2, 21), 31, 32, 33, 48, 64, 100, 145, 257, 384, 512)


def rows_are_invariant(target: TargetModel) -> bool:
    """Of the target itself, and of rows that go through each of its adapters."""
    return all(_are_invariant(target, adapter) for adapter in ("", *target.adapters))


def _are_invariant(target: TargetModel, adapter: str) -> bool:
    """Decodes fixed tokens row by row, and again in blocks, in trees, in chunks, beside another sequence, and
    after pages that others computed in one of these ways."""
    steps = max(_BLOCKS)
    length = min(_PROMPT + _PROMPT // 2, target.context - steps)
    prompt = [(7 * i * i + 3) % target.vocab_size for i in range(length)]
    drafts = [(11 * i + 5) % target.vocab_size for i in range(steps)]

    cache, chunked = target.pool.open(), target.pool.open()
    [first] = target.forward([Rows(cache, prompt, 0, 1, adapter=adapter)])
    single = torch.cat([_decode(target, cache, drafts[i : i + 1], length + i, adapter) for i in range(steps)])
    in_blocks = [
        torch.equal(_decode(target, cache, drafts[:n], length, adapter), single[:n]) for n in _BLOCKS
    ]

    # The same prompt in two chunks, the second beside another sequence's decoding.
    cut = min(_PROMPT, length - 1)
    target.forward([Rows(chunked, prompt[:cut], 0, 0, adapter=adapter)])
    beside, again = target.forward(
        [
            Rows(cache, drafts[:5], length, 5, adapter=adapter),
            Rows(chunked, prompt[cut:], cut, 1, adapter=adapter),
        ]
    )
    after = _decode(target, chunked, drafts[:9], length, adapter)
    pairs = [(again, first), (beside, single[:5]), (after, single[:9])]

    # Its pages, and then those of a sequence that came by all its tokens in blocks, for others to go on with.
    stepped = target.pool.open()
    for start in range(0, length, _STRIDE):
        target.forward([Rows(stepped, prompt[start : start + _STRIDE], start, 0, adapter=adapter)])
    for made in (chunked, stepped):
        made.length = length
        rest = _after_found(target, made, [*prompt, *drafts[:9]], length, adapter)
        pairs += [(rest[:1], first), (rest[1:], single[:9])]
    every = (
        all(in_blocks)
        and all(torch.equal(left, right) for left, right in pairs)
        and all(_is_one_row(target, cache, drafts[0], length, single[0], count, adapter) for count in _COUNTS)
        and _in_a_tree(target, cache, drafts, length, single, adapter)
    )
    cache.release()
    return every


def _after_found(
    target: TargetModel, made: SequenceCache, tokens: list[int], length: int, adapter: str
) -> Tensor:
    """Logits of the last of `length` tokens and of those after it, by a sequence that finds the pages of
    `made`."""
    names, found = PageNames("start-up check", ""), target.pool.open()
    made.name(names, tokens)
    found.adopt(names, tokens, length - 1)
    start, wanted = found.length, len(tokens) - length + 1
    [logits] = target.forward([Rows(found, tokens[start:], start, wanted, adapter=adapter)])
    for cache in (found, made):
        cache.forget()
        cache.release()
    return logits


def _in_a_tree(
    target: TargetModel, cache: SequenceCache, drafts: list[int], start: int, single: Tensor, adapter: str
) -> bool:
    """Whether rows are the same among siblings of their path, and after these have been cleared away."""
    tokens, above, path = [drafts[0]], [-1], [0]
    for token in drafts[1:_DEPTH]:
        # One that is not on the path comes first.
        tokens += [drafts[0], token]
        above += [path[-1]] * 2
        path.append(len(tokens) - 1)
    [rows] = target.forward([Rows(cache, tokens, start, len(tokens), tuple(above), adapter)])
    cache.gather(start, [start + row for row in path])
    behind = _decode(target, cache, drafts[_DEPTH : _DEPTH + 1], start + _DEPTH, adapter)
    return torch.equal(torch.cat([rows[path], behind]), single[: _DEPTH + 1])


def _is_one_row(
    target: TargetModel,
    cache: SequenceCache,
    token: int,
    length: int,
    expected: Tensor,
    count: int,
    adapter: str,
) -> bool:
    """Whether a row that comes `count` times in one step is each time what it is alone."""
    logits = target.forward([Rows(cache, [token], length, 1, adapter=adapter)] * count)
    return all(torch.equal(row[0], expected) for row in logits)


def _decode(target: TargetModel, cache: SequenceCache, tokens: list[int], start: int, adapter: str) -> Tensor:
    [logits] = target.forward([Rows(cache, tokens, start, len(tokens), adapter=adapter)])
    return logits
