from hypothesis import given
from hypothesis import strategies as st

from cluster.drafting import NgramDrafter
from cluster.drafting.drafter import DraftJob
from tests.drafting.helpers import spec
from verifier_service.drafting.repetitions import Repetitions


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=8),
    st.integers(1, 4),
)
def test_it_says_where_a_drafter_that_copies_has_nothing_to_copy(prompt, rounds, minimum):
    """Here, and after the next token, whatever that is; elsewhere there is something."""
    text, repetitions = list(prompt), Repetitions(prompt)

    def drafts(*tokens):
        drafter = NgramDrafter(minimum)
        drafter.open(spec(1, [*text, *tokens]))
        return len(drafter.draft([DraftJob(1, (), 4)])[0].tokens) > 0

    for tokens in ([], *rounds):
        text.extend(tokens)
        repetitions.extend(tokens)
        here, later = repetitions.again(minimum)
        assert here == drafts()
        assert later == any(drafts(token) for token in range(4))


def test_without_a_rule_anything_may_be_drafted_and_rules_may_change():
    repetitions = Repetitions([1, 2, 3])
    assert repetitions.again(0) == (True, True)
    assert repetitions.again(2) == (False, False)
    repetitions.extend([2])
    assert repetitions.again(2) == (False, True)
    assert repetitions.again(0) == (True, True)
    assert repetitions.again(1) == (True, True)
