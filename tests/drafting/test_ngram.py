from hypothesis import given
from hypothesis import strategies as st

from cluster.drafting import NgramDrafter
from cluster.drafting.drafter import DraftJob
from cluster.speculation.messages import DraftBlock
from tests.drafting.helpers import spec

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def longest_suffix(tokens, minimum, maximum):
    """Every length and every place, longest and then latest first."""
    size = len(tokens)
    for length in range(min(maximum, size - 1), minimum - 1, -1):
        for end in range(size - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[size - length :]:
                return end, length
    return 0, 0


def proposal(tokens, minimum, maximum, growth, length):
    end, matched = longest_suffix(tokens, minimum, maximum)
    text = list(tokens)
    for offset in range(min(length, int(matched * growth))):
        text.append(text[end + offset])
    return tuple(text[len(tokens) :])


@given(
    few_tokens,
    st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=4),
    st.integers(1, 4),
    st.integers(0, 6),
    st.sampled_from([0.5, 1.0, 2.5]),
    st.integers(0, 12),
)
def test_equals_a_search_of_the_whole_text(prompt, commits, minimum, beyond, growth, length):
    drafter = NgramDrafter(minimum, minimum + beyond, growth)
    drafter.open(spec(5, prompt))
    text = list(prompt)
    for committed in [[], *commits]:
        text.extend(committed)
        [block] = drafter.draft([DraftJob(5, tuple(committed), length)])
        assert block.tokens == proposal(text, minimum, minimum + beyond, growth, length)
        assert block.max_q == (1.0,) * len(block.tokens)


def test_sessions_are_apart_and_end():
    drafter = NgramDrafter(minimum=1)
    drafter.open(spec(1, [1, 2, 1]))
    drafter.open(spec(2, [1, 3, 1]))
    first, second = drafter.draft([DraftJob(1, (), 1), DraftJob(2, (), 1)])
    assert (first.tokens, second.tokens) == ((2,), (3,))
    drafter.open(spec(1, [7]))
    assert drafter.draft([DraftJob(1, (), 4)])[0].tokens == ()
    drafter.close(1)
    drafter.close(1)
    assert drafter.draft([DraftJob(2, (), 1)])[0].tokens == (3,)


def test_a_period_shorter_than_the_block_repeats():
    drafter = NgramDrafter(minimum=2, growth=4.0)
    drafter.open(spec(1, [8, 9, 8, 9, 8, 9]))
    assert drafter.draft([DraftJob(1, (), 7)])[0].tokens == (8, 9, 8, 9, 8, 9, 8)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=4),
)
def test_a_forecast_tells_what_is_drafted_after_every_outcome_and_leaves_no_trace(prompt, blocks):
    foreseeing, fresh = NgramDrafter(), NgramDrafter()

    def after(*tokens):
        fresh.open(spec(1, [*prompt, *tokens]))
        return fresh.draft([DraftJob(1, (), 5)])[0]

    foreseeing.open(spec(1, prompt))
    for block in blocks:
        forecast = foreseeing.foresee(DraftJob(1, (), 5, guess=tuple(block)))
        told = {(each.kept, each.token): each.block for each in forecast.outcomes}
        assert forecast.exhaustive
        assert len(told) == len(forecast.outcomes)
        for kept in range(len(block) + 1):
            for token in {0, 1, 2} - set(block[kept : kept + 1]):
                assert told.pop((kept, token), DraftBlock()) == after(*block[:kept], token)
        assert not told
        assert foreseeing.draft([DraftJob(1, (), 5)]) == [after()]


def test_a_forecast_that_would_be_long_is_cut_and_says_so():
    drafter = NgramDrafter(minimum=1)
    drafter.open(spec(1, range(100)))
    for job in (DraftJob(1, (), 5), DraftJob(1, (), 5, guess=(7, 7, 7))):
        forecast = drafter.foresee(job)
        assert len(forecast.outcomes) == 64
        assert not forecast.exhaustive
    assert drafter.draft([DraftJob(1, (7,), 2)])[0].tokens == (8,)


@given(few_tokens, st.integers(1, 3), st.integers(0, 8), st.integers(2, 4))
def test_a_tree_is_made_of_continuations_that_did_occur_and_begins_with_the_chain(
    prompt, minimum, length, width
):
    drafter = NgramDrafter(minimum, minimum + 4)
    drafter.open(spec(5, prompt))
    [chain], [tree] = (drafter.draft([DraftJob(5, (), length, width=each)]) for each in (1, width))
    count = len(tree.tokens)
    assert tree.tokens[: len(chain.tokens)] == chain.tokens
    assert count <= length * width
    assert tree.depth() <= length
    assert tree.max_q == (1.0,) * count
    ends = {
        end
        for end in range(minimum, len(prompt))
        if prompt[end - minimum : end] == prompt[len(prompt) - minimum :]
    }
    for draft in range(-1, count):
        children = tree.children(draft)
        # Siblings are different, and as many as were asked for.
        assert len({tree.tokens[each] for each in children}) == len(children) <= width
    for draft in range(count):
        path = [draft]
        while tree.parent(path[0]) >= 0:
            path.insert(0, tree.parent(path[0]))
        said = [tree.tokens[each] for each in path]
        # What lies beyond the text are the drafts themselves.
        assert any([*prompt, *said][end : end + len(said)] == said for end in ends)
