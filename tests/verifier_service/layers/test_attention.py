"""The ragged attention against a dense one with masks, and bitwise against itself."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.kernels.attention import PAGE
from verifier_service.cache.kv_cache import KVPool
from verifier_service.layers.attention import Batch, Segment, _by_segments, ragged_attention

HEADS, KV_HEADS, DIM = 4, 2, 8
SCALING = 0.3
CPU = torch.device("cpu")


class Text:
    """Random queries, keys and values of one sequence: [1, heads, n, dim]."""

    def __init__(self, length, seed, pool=None):
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(1, HEADS, length, DIM, generator=generator)
        self.key = torch.randn(1, KV_HEADS, length, DIM, generator=generator)
        self.value = torch.randn(1, KV_HEADS, length, DIM, generator=generator)
        self.length = length
        self.cache = (pool or POOL).open()


POOL = KVPool(1, KV_HEADS, DIM, 8192, torch.float32, CPU)


def batch(segments):
    return Batch(segments)


def attend(*parts, window=None, **kwargs):
    """Attention over (text, first, last) side by side: [rows, heads, dim] for each."""
    segments, row = [], 0
    for text, first, last in parts:
        segments.append(Segment(text.cache, row, last - first, first))
        row += last - first
    module = SimpleNamespace(layer_idx=0)
    query, key, value = (
        torch.cat([getattr(text, name)[:, :, first:last] for text, first, last in parts], dim=2)
        for name in ("query", "key", "value")
    )
    out, weights = ragged_attention(
        module, query, key, value, None, SCALING, batch(segments), sliding_window=window, **kwargs
    )
    assert weights is None
    return out[0].split([last - first for _, first, last in parts])


def dense(text, window=None):
    """The same by the book, in double precision: [n, heads, dim]."""
    key = text.key[0].double().repeat_interleave(HEADS // KV_HEADS, dim=0)
    value = text.value[0].double().repeat_interleave(HEADS // KV_HEADS, dim=0)
    scores = text.query[0].double() @ key.transpose(1, 2) * SCALING
    row, column = torch.arange(text.length)[:, None], torch.arange(text.length)[None]
    hidden = column > row
    if window is not None:
        hidden |= column <= row - window
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return (weights @ value).transpose(0, 1).float()


@pytest.mark.parametrize("window", [None, 1, 5, PAGE, PAGE + 7])
@pytest.mark.parametrize("prompt", [1, 2, PAGE, PAGE + 1, 2 * PAGE + 9])
def test_prompt_and_decoded_rows_attend_to_exactly_their_prefix(prompt, window):
    text = Text(prompt + 20, seed=prompt)
    [start] = attend((text, 0, prompt), window=window)
    [block] = attend((text, prompt, prompt + 20), window=window)
    torch.testing.assert_close(torch.cat([start, block]), dense(text, window), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("cuts", [[PAGE], [5, 2 * PAGE], [2 * PAGE + 1]])
def test_a_prompt_in_chunks_is_bitwise_the_whole_prompt(cuts, window):
    prompt = 2 * PAGE + 30
    whole, chunked = Text(prompt, seed=1), Text(prompt, seed=1)
    [expected] = attend((whole, 0, prompt), window=window)
    edges = [0, *cuts, prompt]
    pieces = [attend((chunked, first, last), window=window)[0] for first, last in itertools.pairwise(edges)]
    assert torch.equal(torch.cat(pieces), expected)


@pytest.mark.parametrize("window", [None, 6])
def test_a_row_is_bitwise_the_same_alone_in_a_block_and_beside_others(window):
    prompt, length = 30, 47
    one, several, mixed = (Text(length, seed=2) for _ in range(3))
    for text in (one, several, mixed):
        attend((text, 0, prompt), window=window)
    single = torch.cat([attend((one, at, at + 1), window=window)[0] for at in range(prompt, length)])
    [block] = attend((several, prompt, length), window=window)
    assert torch.equal(block, single)
    before, after = Text(100, seed=3), Text(9, seed=4)
    _, beside, _ = attend((before, 0, 100), (mixed, prompt, length), (after, 0, 9), window=window)
    assert torch.equal(beside, single)


def test_sequences_do_not_see_each_other():
    left, right = Text(70, seed=5), Text(12, seed=6)
    ours, theirs = attend((left, 0, 70), (right, 0, 12))
    torch.testing.assert_close(ours, dense(left), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(theirs, dense(right), atol=1e-5, rtol=1e-4)


def test_rows_written_over_after_a_roll_back_leave_no_trace():
    clean, tried = Text(40, seed=7), Text(40, seed=7)
    for text in (clean, tried):
        attend((text, 0, 30))
    rejected = Text(40, seed=8)
    rejected.cache = tried.cache
    attend((rejected, 30, 38))
    assert torch.equal(attend((tried, 30, 33))[0], attend((clean, 30, 33))[0])


@pytest.mark.parametrize("option", ["softcap", "s_aux"])
def test_attention_that_is_not_implemented_is_refused_and_not_ignored(option):
    with pytest.raises(ValueError, match=f"attention with {option} is not supported"):
        attend((Text(4, seed=9), 0, 4), **{option: 30.0})
    # Families pass the option as None where a model does not use it.
    attend((Text(4, seed=9), 0, 4), **{option: None})


def test_a_batch_without_segments_is_refused():
    text = Text(4, seed=10)
    with pytest.raises(ValueError, match="needs the segments"):
        ragged_attention(SimpleNamespace(layer_idx=0), text.query, text.key, text.value, None, 1.0)


def test_a_window_kept_in_the_module_counts_like_one_that_is_passed():
    kept, passed = Text(20, seed=11), Text(20, seed=11)
    module = SimpleNamespace(layer_idx=0, sliding_window=4)
    out, _ = ragged_attention(
        module, kept.query, kept.key, kept.value, None, SCALING, batch([Segment(kept.cache, 0, 20, 0)])
    )
    assert torch.equal(out[0], attend((passed, 0, 20), window=4)[0])


@st.composite
def trees(draw):
    """For each row the one that it follows, -1 for the first."""
    size = draw(st.integers(2, 24))
    return (-1, *(draw(st.integers(0, row - 1)) for row in range(1, size)))


def path_of(above, row):
    path = [row]
    while above[path[-1]] >= 0:
        path.append(above[path[-1]])
    return path[::-1]


def on_path(text, prompt, path):
    """The sequence that has the prompt and the rows of a path alone."""
    columns = [*range(prompt), *(prompt + row for row in path)]
    alone = Text(0, seed=0)
    alone.length = len(columns)
    alone.query, alone.key, alone.value = (
        getattr(text, name)[:, :, columns] for name in ("query", "key", "value")
    )
    return alone


@settings(max_examples=40, deadline=None)
@given(above=trees(), prompt=st.integers(0, 2 * PAGE + 3), window=st.sampled_from([None, 1, 4, PAGE + 3]))
def test_a_row_of_a_tree_is_bitwise_what_it_is_at_the_end_of_its_path_alone(above, prompt, window):
    count = len(above)
    text, other = Text(prompt + count, seed=prompt), Text(9, seed=1)
    if prompt:
        attend((text, 0, prompt), window=window)
    module = SimpleNamespace(layer_idx=0)
    # Beside a chain, so that rows of the batch and rows of the tree are not the same numbers.
    segments = [Segment(other.cache, 0, 9, 0), Segment(text.cache, 9, count, prompt, above)]
    parts = [
        torch.cat([getattr(other, name), getattr(text, name)[:, :, prompt:]], dim=2)
        for name in ("query", "key", "value")
    ]
    out, _ = ragged_attention(module, *parts, None, SCALING, batch(segments), sliding_window=window)
    for row in range(count):
        path = path_of(above, row)
        alone = on_path(text, prompt, path)
        if prompt:
            attend((alone, 0, prompt), window=window)
        single = [attend((alone, at, at + 1), window=window)[0] for at in range(prompt, alone.length)]
        assert torch.equal(out[0, 9 + row], single[-1][0])
        alone.cache.release()
    for each in (text, other):
        each.cache.release()


@pytest.mark.parametrize("window", [None, 3])
def test_torchs_own_attention_sees_the_same_of_a_tree(window):
    above, prompt = (-1, 0, 0, 1, 2, 2, 4, 0), 5
    text = Text(prompt + len(above), seed=12)
    segment = Segment(text.cache, 0, prompt, 0)
    rows = [getattr(text, name)[0].transpose(0, 1).contiguous() for name in ("query", "key", "value")]
    query, key, value = (np.pad(part.numpy(), ((0, 0), (0, 0), (0, POOL.dim - DIM))) for part in rows)
    query, key, value = (torch.from_numpy(part) for part in (query * SCALING, key, value))
    _by_segments(batch([segment]), 0, query[:prompt], key[:prompt], value[:prompt], window)
    segment = Segment(text.cache, 0, len(above), prompt, above)
    out = _by_segments(batch([segment]), 0, query[prompt:], key[prompt:], value[prompt:], window)
    for row in range(len(above)):
        expected = dense(on_path(text, prompt, path_of(above, row)), window)[-1]
        torch.testing.assert_close(out[row, :, :DIM], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("above", [(-1, 1), (0, 0), (-1, -1), (-1,), (-1, 0, 2)])
def test_what_is_no_tree_is_refused(above):
    with pytest.raises(ValueError, match="follows one before it"):
        batch([Segment(Text(2, seed=1).cache, 0, 2, 0, above)])
