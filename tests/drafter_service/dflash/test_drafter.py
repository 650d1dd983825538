from dataclasses import replace

import pytest
import torch

from cluster.drafting.drafter import DraftJob
from cluster.drafting.features import FeaturesInfo
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise
from cluster.speculation.proposal import unpack
from cluster.speculation.sampling import Sampling
from drafter_service.drafters.dflash.drafter import BlockDiffusionDrafter
from drafter_service.drafters.dflash.loading import Borrowed, load_network
from drafter_service.drafters.dflash.model import Context
from tests.drafter_service.dflash.checkpoints import HIDDEN, VOCAB, build_drafter
from tests.drafting.helpers import GREEDY, spec

SEED = 11
KEY = Noise(SEED, 0).field.key
WARM = Sampling(temperature=1.0)
TEXT = list(range(20, 32))


@pytest.fixture(scope="module")
def heads():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator)


@pytest.fixture(scope="module")
def fused():
    return torch.randn(600, HIDDEN, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def made(tmp_path, heads):
    def make(*, selects=False, draft_ids=None, context=512, vocab=VOCAB, **changes):
        network, _ = load_network(build_drafter(tmp_path / "d", selects=selects, **changes), "float32", "cpu")
        embedding, head = heads
        chosen = head if draft_ids is None else head[draft_ids]
        info = FeaturesInfo((1, 2, 4), "", "float32", HIDDEN)
        return BlockDiffusionDrafter(
            network, Borrowed(embedding, chosen, draft_ids), "d", "", info, context, vocab
        )

    return make


def first(drafter, fused, length=6, law=COUPLED, sampling=GREEDY, entries=0, text=TEXT, **fields):
    drafter.open(spec(1, text, sampling, KEY, law, entries))
    [block] = drafter.draft([DraftJob(1, (), length, fused=fused[: len(text) - 1], **fields)])
    return block


def rows_of(drafter, heads, fused, length, text=TEXT):
    """q rows by the network itself, at temperature 1: [length, V]."""
    network, (embedding, head) = drafter._network, heads
    context = Context(len(network.layers))
    with torch.inference_mode():
        network.extend(context, fused[None, : len(text) - 1])
        ids = torch.tensor([text[-1]] + [7] * length)
        at = torch.arange(len(text) - 1, len(text) + length)[None]
        hidden = network(embedding[ids][None], at, context)[0, 1:]
        return torch.softmax(hidden @ head.T, dim=-1)


def test_one_pass_gives_a_whole_block_and_no_more_than_it_was_trained_for(made, fused):
    drafter = made()
    assert len(first(drafter, fused, 6).tokens) == 6
    assert len(first(drafter, fused, 40).tokens) == drafter.longest == 15


def test_without_features_it_has_nothing_to_say_and_catches_up(made, fused):
    drafter, whole = made(), first(made(), fused)
    drafter.open(spec(1, TEXT, GREEDY, KEY))
    assert drafter.draft([DraftJob(1, (), 6)]) == [DraftBlock()]
    assert drafter.draft([DraftJob(1, (), 6, fused=fused[:4])]) == [DraftBlock()]
    assert drafter.draft([DraftJob(1, (), 6, fused=fused[4 : len(TEXT) - 1])]) == [whole]
    # After a guess there are none.
    assert drafter.draft([DraftJob(1, (), 6, guess=(3, 4))]) == [DraftBlock()]


@pytest.mark.parametrize("selects", [False, True])
def test_pieces_of_features_and_rounds_leave_no_trace(made, fused, selects):
    """State after rounds of every outcome is that of one prompt, to rounding: block rows leave nothing."""
    drafter = made(selects=selects)
    first(drafter, fused)
    text = list(TEXT)
    for committed in [(5,), (6, 7, 8), tuple(range(40, 47))]:
        rows = fused[len(text) - 1 : len(text) - 1 + len(committed)]
        text.extend(committed)
        [block] = drafter.draft([DraftJob(1, committed, 6, fused=rows)])
        assert block.tokens == first(made(selects=selects), fused, text=text).tokens


def test_drafts_no_further_than_the_context(made, fused):
    drafter = made(context=14)
    assert len(first(drafter, fused, 6).tokens) == 3
    [block] = drafter.draft([DraftJob(1, (1, 2, 3), 6, fused=fused[11:14])])
    assert block == DraftBlock()


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_coupled_draws_with_the_noise_that_decides(made, heads, fused, sampling):
    drafter = made()
    block = first(drafter, fused, sampling=sampling)
    q = rows_of(drafter, heads, fused, 6)
    if sampling == GREEDY:
        assert list(block.tokens) == q.argmax(dim=-1).tolist()
        return
    field = Noise(SEED, 0).field
    assert list(block.tokens) == [field.winner(len(TEXT) + k, row) for k, row in enumerate(q)]
    assert block.max_q == pytest.approx(q.amax(dim=-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("selects", [False, True])
@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_proposals_are_what_was_drawn_from(made, heads, fused, law, selects):
    drafter = made(selects=selects)
    block = first(drafter, fused, law=law, sampling=WARM, entries=16)
    again = first(made(selects=selects), fused, law=law, sampling=WARM, entries=16)
    assert block.tokens == again.tokens
    rows = unpack(block, VOCAB)
    noise = DraftField(KEY, len(TEXT))
    assert [noise.draw(k, row) for k, row in enumerate(rows)] == list(block.tokens)
    if not selects:
        for row, q in zip(rows, rows_of(drafter, heads, fused, 6), strict=True):
            top = q.topk(16)
            assert set(row.ids) == set(top.indices.tolist())
            kept = torch.tensor([float(q[token]) for token in row.ids])
            assert list(row.probs) == pytest.approx((kept / kept.sum()).tolist(), abs=1e-5)


def test_padding_is_never_proposed(made, fused):
    whole = first(made(), fused, 15).tokens
    least = min(whole)
    cut = first(made(vocab=max(whole)), fused, 15).tokens
    # Ids of the tokenizer end before some of the head's rows.
    assert max(cut) < max(whole)
    assert least <= max(cut)


@pytest.mark.parametrize("selects", [False, True])
def test_a_reduced_vocabulary_is_the_full_one_without_the_others(made, heads, fused, selects):
    ids = torch.arange(3, VOCAB, 5)
    block = first(made(selects=selects, draft_ids=ids), fused, sampling=WARM)
    assert set(block.tokens) <= set(ids.tolist())
    if not selects:
        drafter = made(draft_ids=ids)
        q = torch.zeros(6, VOCAB)
        q[:, ids] = rows_of(drafter, heads, fused, 6)[:, ids]
        field = Noise(SEED, 0).field
        assert list(block.tokens) == [field.winner(len(TEXT) + k, row) for k, row in enumerate(q)]


def test_a_block_ends_before_a_position_of_little_confidence(made, fused):
    drafter = made()
    block = first(drafter, fused, 15, sampling=WARM)
    edge = sorted(block.max_q)[5]
    end = next(k for k, q in enumerate(block.max_q) if q < edge)
    assert first(drafter, fused, 15, sampling=WARM, stop_below=edge).tokens == block.tokens[:end]


@pytest.mark.parametrize("causal", [None, False])
def test_a_window_forgets_what_no_row_sees(made, fused, causal):
    window = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": True}
    changes = window if causal is None else window | {"is_causal": causal}
    drafter = made(**changes)
    text = list(range(100, 140))
    short = first(drafter, fused, text=text)
    assert drafter._sessions[1].context.length == len(text) - 1
    assert drafter._sessions[1].context.keys[0].shape[2] == 7
    # The same with everything kept.
    free = made(**changes)
    free._memory = 0
    assert first(free, fused, text=text) == short
    # A window that covers the text changes what is drafted.
    assert first(made(**changes | {"sliding_window": 400}), fused, text=text) != short


def test_sessions_are_apart_and_close(made, fused):
    drafter = made()
    one = first(drafter, fused)
    drafter.open(replace(spec(2, TEXT[:5], GREEDY, KEY)))
    [other, same] = drafter.draft([DraftJob(2, (), 6, fused=fused[100:104]), DraftJob(1, (), 6)])
    assert same == one
    assert other != one
    drafter.close(1)
    with pytest.raises(KeyError):
        drafter.draft([DraftJob(1, (), 6)])


@pytest.mark.parametrize("selects", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=str)
def test_a_tree_is_the_chain_with_siblings(made, fused, selects, sampling):
    chain, tree = (first(made(selects=selects), fused, 6, sampling=sampling, width=width) for width in (1, 3))
    here, said = -1, []
    while children := tree.children(here):
        assert len(children) == len({tree.tokens[each] for each in children}) == 3
        here = children[0]
        said.append(tree.tokens[here])
    assert tuple(said) == chain.tokens
    assert len(tree.tokens) == 18
