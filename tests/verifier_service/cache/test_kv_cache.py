"""Pages: taken as needed, shared by name, kept, given up in order, and never lost."""

from collections import Counter

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cluster.kernels.attention import PAGE
from verifier_service.cache.kv_cache import KVPool, pages_of
from verifier_service.cache.pages import OutOfPagesError, Pages
from verifier_service.cache.prefixes import PageNames
from verifier_service.layers.attention import Batch, Segment

TEXT = [(5 * i * i + 1) % 500 for i in range(8 * PAGE)]


def pool_of(pages):
    return KVPool(2, 3, 8, pages * PAGE, torch.float32, torch.device("cpu"))


def names():
    return PageNames("model", "tenant")


def filled(pool, tokens):
    """A cache that has computed these tokens, which others may have."""
    cache = pool.open()
    cache.reserve(len(tokens))
    cache.length = len(tokens)
    cache.name(names(), tokens)
    return cache


def found(pool, tokens, most):
    cache = pool.open()
    cache.adopt(names(), tokens, most)
    return cache


def test_pages_are_taken_as_they_are_needed_and_come_back_empty():
    pool = pool_of(4)
    cache = pool.open()
    cache.reserve(PAGE)
    assert (len(cache.pages), pool.pages.free) == (1, 3)
    cache.reserve(PAGE + 1)
    cache.reserve(3)
    assert (len(cache.pages), pool.pages.free) == (2, 2)
    pool.keys[:, cache.pages] = 1
    pool.values[:, cache.pages] = torch.nan
    other = pool.open()
    with pytest.raises(OutOfPagesError, match="3 pages are asked for and 2 can be had"):
        other.reserve(2 * PAGE + 1)
    assert (other.pages, pool.pages.free) == ([], 2)
    cache.fit(1)
    assert (len(cache.pages), pool.pages.free) == (1, 3)
    cache.release()
    assert (cache.pages, cache.length, pool.pages.free) == ([], 0, 4)
    assert not pool.keys.any()
    assert not pool.values.any()


@pytest.mark.parametrize("length", [PAGE, 3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 5])
def test_full_pages_are_found_while_they_are_held_and_after(length):
    pool = pool_of(8)
    first = filled(pool, TEXT[:length])
    full = length // PAGE
    second = found(pool, TEXT, len(TEXT))
    assert second.pages == first.pages[:full]
    assert (second.length, second.fixed) == (full * PAGE, full * PAGE)
    assert pool.pages.held == pages_of(length)
    for cache in (first, second):
        cache.release()
    assert (pool.pages.held, pool.pages.kept, pool.pages.free) == (0, full, 8)
    assert found(pool, TEXT, len(TEXT)).length == full * PAGE
    assert pool.pages.kept == 0


@pytest.mark.parametrize(("most", "pages"), [(PAGE - 1, 0), (PAGE, 1), (2 * PAGE - 1, 1), (4 * PAGE, 3)])
def test_no_more_is_found_than_is_asked_for(most, pages):
    pool = pool_of(8)
    filled(pool, TEXT[: 3 * PAGE])
    assert found(pool, TEXT, most).length == pages * PAGE


def test_a_page_is_found_only_after_the_same_tokens_of_the_same_model_and_tenant():
    pool = pool_of(8)
    filled(pool, TEXT[: 3 * PAGE])
    other = [*TEXT]
    other[PAGE + 3] += 1
    assert found(pool, other, len(other)).length == PAGE
    # The third page's own tokens are the same.
    assert other[2 * PAGE : 3 * PAGE] == TEXT[2 * PAGE : 3 * PAGE]
    for strange in (("model", "other"), ("another", "tenant"), ("modelt", "enant")):
        cache = pool.open()
        cache.adopt(PageNames(*strange), TEXT, len(TEXT))
        assert cache.length == 0


def test_pages_longest_without_use_make_room_first_and_of_one_sequence_the_last():
    pool = pool_of(6)
    old, new = filled(pool, TEXT[: 3 * PAGE]), filled(pool, TEXT[4 * PAGE : 6 * PAGE])
    old.release()
    new.release()
    # Used again: it is the newest now.
    found(pool, TEXT, PAGE).release()
    taken = pool.open()
    taken.reserve(3 * PAGE)
    assert (found(pool, TEXT, len(TEXT)).length, pool.pages.kept) == (PAGE, 2)
    assert found(pool, TEXT[4 * PAGE :], 2 * PAGE).length == 2 * PAGE
    with pytest.raises(OutOfPagesError):
        taken.reserve(4 * PAGE)


def test_a_page_that_made_room_is_empty():
    pool = pool_of(1)
    cache = filled(pool, TEXT[:PAGE])
    pool.keys[:, cache.pages] = 7
    cache.release()
    assert pool.keys.any()
    pool.open().reserve(1)
    assert not pool.keys.any()


def test_what_is_forgotten_is_not_found_and_what_others_hold_stays():
    pool = pool_of(4)
    first = filled(pool, TEXT[: 2 * PAGE])
    second = found(pool, TEXT, 2 * PAGE)
    first.forget()
    first.release()
    assert found(pool, TEXT, 2 * PAGE).length == 0
    assert pool.pages.held == len(second.pages) == 2
    second.release()
    assert (pool.pages.held, pool.pages.kept) == (0, 0)


def test_rows_in_a_page_that_others_may_read_are_refused():
    pool = pool_of(4)
    cache = filled(pool, TEXT[: 2 * PAGE + 3])
    with pytest.raises(ValueError, match="a page that other sequences may read"):
        Batch([Segment(cache, 0, 2, 2 * PAGE - 1)])
    Batch([Segment(cache, 0, 2, 2 * PAGE)])


class Accounts(RuleBasedStateMachine):
    """Pages are conserved whatever sequences do: each is free, kept, or held as often as caches have it."""

    caches = Bundle("caches")
    COUNT = 6

    def __init__(self):
        super().__init__()
        self.pages = Pages(self.COUNT)
        self.pool = pool_of(self.COUNT)
        self.pool.pages = self.pages
        self.open = []

    @rule(target=caches, text=st.integers(0, 2), most=st.integers(0, 4 * PAGE))
    def begin(self, text, most):
        cache = self.pool.open()
        cache.text = [text, *TEXT]
        cache.adopt(names(), cache.text, most)
        self.open.append(cache)
        return cache

    @rule(cache=caches, more=st.integers(1, 2 * PAGE))
    def grow(self, cache, more):
        try:
            cache.fit(min(len(cache.text), cache.length + more))
            cache.length = min(len(cache.text), cache.length + more)
        except OutOfPagesError:
            assert pages_of(cache.length + more) - len(cache.pages) > self.pages.free

    @rule(cache=caches, less=st.integers(0, PAGE))
    def roll_back(self, cache, less):
        cache.length = max(cache.fixed, cache.length - less)
        cache.fit(cache.length)

    @rule(cache=caches)
    def tell(self, cache):
        cache.name(names(), cache.text)

    @rule(cache=consumes(caches), sound=st.booleans())
    def end(self, cache, sound):
        if sound:
            cache.name(names(), cache.text)
        else:
            cache.forget()
        cache.release()
        self.open.remove(cache)

    @invariant()
    def conserved(self):
        holders = Counter(page for cache in self.open for page in cache.pages)
        assert self.pages._holders == [holders[page] for page in range(self.COUNT)]
        free, kept = self.pages._free, list(self.pages._kept)
        assert sorted([*free, *kept, *holders]) == list(range(self.COUNT))
        assert (self.pages.held, self.pages.free) == (len(holders), len(free) + len(kept))
        assert self.pages._names.keys() & set(free) == set()
        assert {name: page for page, name in self.pages._names.items()} == self.pages._by_name

    @invariant()
    def shared_pages_have_the_same_tokens_before_them(self):
        content = {}
        for cache in self.open:
            for k, page in enumerate(cache.pages[: cache.fixed // PAGE]):
                assert content.setdefault(page, cache.text[: (k + 1) * PAGE]) == cache.text[: (k + 1) * PAGE]


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, deadline=None)
