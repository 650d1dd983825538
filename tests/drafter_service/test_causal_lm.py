from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen3NextConfig

from cluster.drafting import DraftingError
from cluster.drafting.drafter import DraftJob
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import DraftBlock, SparseRows
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import truncate, unpack
from cluster.speculation.sampling import Sampling, target_probs
from drafter_service.drafters.causal_lm import CausalLmDrafter
from tests.drafting.helpers import GREEDY, spec
from tests.speculation.helpers import ALPHA, p_value
from verifier_service.verification import verify

SEED = 11
KEY = Noise(SEED, 0).field.key
WARM = Sampling(temperature=1.0)
SAMPLINGS = [
    GREEDY,
    WARM,
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.3, top_k=9, min_p=0.02),
]


@torch.inference_mode()
def uncached(model, tokens, length, sampling, vocab=64):
    """Draws `length` tokens with a whole forward for each."""
    text, max_q = list(tokens), []
    for _ in range(length):
        logits = model(torch.tensor([text]), use_cache=False).logits[:, -1, :vocab].float()
        probs = target_probs(logits, sampling)[0]
        max_q.append(float(probs.max()))
        text.append(Noise(SEED, 0).field.winner(len(text), probs))
    return DraftBlock(tuple(text[len(tokens) :]), tuple(max_q))


def drafter_of(model, context=48, vocab_size=64):
    return CausalLmDrafter(model, "tiny", "r0", context, vocab_size)


def check(block, reference):
    assert block.tokens == reference.tokens
    assert block.max_q == pytest.approx(reference.max_q, abs=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drafts_what_a_plain_loop_draws(llama, sampling):
    drafter = drafter_of(llama)
    text = [3, 1, 4, 1, 5]
    drafter.open(spec(1, text, sampling, KEY))
    committed = []
    # All accepted and a bonus, a part and a correction, none, nothing new, more than was drafted.
    for accepted, extra in [(4, [9]), (2, [8]), (0, [7]), (0, []), (4, [6, 5, 4]), (1, [3])]:
        [block] = drafter.draft([DraftJob(1, tuple(committed), 4)])
        check(block, uncached(llama, text, 4, sampling))
        committed = [*block.tokens[:accepted], *extra]
        text += committed


def test_under_coupled_noise_the_target_as_its_own_drafter_is_always_accepted(llama):
    drafter = drafter_of(llama)
    drafter.open(spec(1, [1, 2, 3], WARM, KEY))
    [block] = drafter.draft([DraftJob(1, (4,), 6)])
    with torch.inference_mode():
        logits = llama(torch.tensor([[1, 2, 3, 4, *block.tokens]]), use_cache=False).logits[0, 3:].float()
    verdict = verify(COUPLED, target_probs(logits, WARM), block, Noise(SEED, 4))
    assert verdict.accepted == 6


def test_a_guess_is_drafted_from_and_leaves_no_trace(llama):
    drafter = drafter_of(llama)
    text = [3, 1, 4, 1, 5]
    drafter.open(spec(1, text, WARM, KEY))
    committed = []
    for guess, outcome in [([9, 2], [9, 2]), ([8], [7]), ([6, 5, 4], []), ([], [1, 2]), ([4], [4, 3])]:
        [block] = drafter.draft([DraftJob(1, tuple(committed), 4)])
        text += committed
        check(block, uncached(llama, text, 4, WARM))
        [ahead] = drafter.draft([DraftJob(1, (), 4, guess=tuple(guess))])
        check(ahead, uncached(llama, [*text, *guess], 4, WARM))
        committed = outcome


@pytest.mark.parametrize("law", [COUPLED, REJECTION], ids=str)
def test_the_plans_rule_ends_a_block_before_a_position_that_is_too_flat(llama, law):
    [whole] = opened(llama, law).draft([DraftJob(1, (), 8)])
    for least in (0.0, *whole.max_q, 1.0):
        [block] = opened(llama, law).draft([DraftJob(1, (), 8, stop_below=least)])
        kept = next((k for k, max_q in enumerate(whole.max_q) if max_q < least), 8)
        assert (block.tokens, block.max_q) == (whole.tokens[:kept], whole.max_q[:kept])


PROPOSING = [REJECTION, BLOCK]
DRAFT_KEY = derive_key(SEED, Purpose.DRAFT)
ENTRIES = 8


@torch.inference_mode()
def proposed(model, tokens, length, sampling, entries=ENTRIES):
    """Draws from truncated rows with a whole forward for each; the tokens and the rows."""
    text, rows = list(tokens), []
    for index in range(length):
        logits = model(torch.tensor([text]), use_cache=False).logits[:, -1].float()
        rows.append(truncate(target_probs(logits, sampling)[0], entries))
        text.append(DraftField(DRAFT_KEY, len(tokens)).draw(index, rows[-1]))
    return tuple(text[len(tokens) :]), rows


def opened(model, law, sampling=WARM, text=(3, 1, 4, 1, 5)):
    drafter = drafter_of(model)
    key, entries = (KEY, 0) if law == COUPLED else (DRAFT_KEY, ENTRIES)
    drafter.open(spec(1, text, sampling, key, law, entries))
    return drafter


@pytest.mark.parametrize("law", PROPOSING, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_proposes_the_truncated_row_that_each_token_is_drawn_from(llama, sampling, law):
    drafter, text, committed = opened(llama, law, sampling), [3, 1, 4, 1, 5], []
    for accepted, extra in [(4, [9]), (1, [8]), (0, []), (2, [6, 5])]:
        [block] = drafter.draft([DraftJob(1, tuple(committed), 4)])
        tokens, rows = proposed(llama, text, 4, sampling)
        assert block.tokens == tokens
        for row, reference, statistic in zip(unpack(block, 64), rows, block.max_q, strict=True):
            assert row.ids == reference.ids
            assert row.weights == pytest.approx(reference.weights, abs=1e-5)
            assert statistic == max(row.probs)
        committed = [*block.tokens[:accepted], *extra]
        text += committed


@pytest.mark.parametrize("law", [COUPLED, *PROPOSING], ids=str)
def test_a_repeated_job_has_the_same_block_and_a_later_round_noise_of_its_own(llama, law):
    first, again, shorter = (opened(llama, law).draft([DraftJob(1, (2,), n)])[0] for n in (5, 5, 3))
    assert first.tokens == again.tokens
    assert shorter.tokens == first.tokens[:3]
    if law != COUPLED:
        assert torch.equal(first.proposal.ids, again.proposal.ids)
        assert torch.equal(first.proposal.probs, again.proposal.probs)
    # The same positions, drafted from the same text in a round that began one token later.
    later = opened(llama, law).draft([DraftJob(1, (2, first.tokens[0]), 4)])[0]
    assert (later.tokens == first.tokens[1:]) is (law == COUPLED)


def recorded_at(temperature, block):
    """The block with its rows as they would be at another temperature."""
    probs = block.proposal.probs.double() ** (1.0 / temperature)
    return replace(block, proposal=SparseRows(block.proposal.ids, (probs / probs.sum(1, True)).float()))


def test_tokens_follow_the_rows_that_are_sent_and_no_others(llama):
    drafter, blocks = drafter_of(llama), []
    for seed in range(1500):
        drafter.open(spec(1, [7, 7, 2], WARM, derive_key(seed, Purpose.DRAFT), REJECTION, ENTRIES))
        blocks += drafter.draft([DraftJob(1, (), 1)])

    def fit(change):
        """Of the one draft after one text, over all keys, to the row that came with it."""
        row = unpack(change(blocks[0]), 64)[0]
        return p_value([row.ids.index(block.tokens[0]) for block in blocks], torch.tensor(row.probs))

    assert fit(lambda block: block) > ALPHA
    assert fit(lambda block: recorded_at(0.7, block)) < ALPHA


def test_another_key_draws_other_tokens(llama):
    drafter = drafter_of(llama)
    drafter.open(spec(1, [1, 2], WARM, KEY))
    drafter.open(spec(2, [1, 2], WARM, KEY + 1))
    first, second = drafter.draft([DraftJob(1, (), 8), DraftJob(2, (), 8)])
    assert first.tokens != second.tokens


def test_sequences_are_apart_and_an_empty_plan_still_commits(llama):
    drafter = drafter_of(llama)
    texts = {1: [1, 2, 3], 2: [9, 8]}
    for number, text in texts.items():
        drafter.open(spec(number, text, WARM, KEY))
    for committed in [(5,), (6, 7)]:
        lengths = {1: 3, 2: 0}
        blocks = drafter.draft([DraftJob(n, committed, lengths[n]) for n in texts])
        for (number, text), block in zip(texts.items(), blocks, strict=True):
            text.extend(committed)
            check(block, uncached(llama, text, lengths[number], WARM))
    drafter.close(1)
    drafter.close(1)
    with pytest.raises(KeyError):
        drafter.draft([DraftJob(1, (), 1)])
    check(drafter.draft([DraftJob(2, (), 3)])[0], uncached(llama, texts[2], 3, WARM))


def test_ends_with_the_context(llama):
    drafter = drafter_of(llama, context=10)
    drafter.open(spec(1, range(7), WARM, KEY))
    text = list(range(7))
    for committed, drafted in [((), 4), ((1,), 3), ((2, 3), 1), ((4,), 0), ((5,), 0)]:
        text += committed
        check(drafter.draft([DraftJob(1, committed, 6)])[0], uncached(llama, text, drafted, WARM))
    drafter.open(spec(2, range(30), WARM, KEY))
    assert drafter.draft([DraftJob(2, (), 6)]) == [DraftBlock()]


def test_padding_rows_are_never_proposed(llama):
    drafter = drafter_of(llama, vocab_size=20)
    drafter.open(spec(1, [1, 2, 3], Sampling(temperature=2.0), KEY))
    [block] = drafter.draft([DraftJob(1, (), 30)])
    assert max(block.tokens) < 20
    check(block, uncached(llama, [1, 2, 3], 30, Sampling(temperature=2.0), vocab=20))


def test_a_failure_is_typed_and_leaves_nothing_behind(llama, monkeypatch):
    drafter = drafter_of(llama)
    drafter.open(spec(1, [1, 2, 3], WARM, KEY))
    drafter.draft([DraftJob(1, (), 4)])
    # The second layer fails after the first has extended its cache.
    with monkeypatch.context() as patch:
        patch.setattr(llama.model.layers[1].mlp, "forward", lambda x: x.no_such())
        with pytest.raises(DraftingError, match="tiny"):
            drafter.draft([DraftJob(1, (4,), 4)])
    check(drafter.draft([DraftJob(1, (), 4)])[0], uncached(llama, [1, 2, 3, 4], 4, WARM))
    drafter.open(spec(2, [1, 64], WARM, KEY))
    with pytest.raises(DraftingError, match="64"):
        drafter.draft([DraftJob(2, (), 4)])


def test_a_sliding_window_is_rolled_back(llama):
    torch.manual_seed(1)
    shape = {k: getattr(llama.config, k) for k in ("vocab_size", "hidden_size", "intermediate_size")}
    config = MistralConfig(
        **shape, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=6,
        initializer_range=0.4,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    drafter = drafter_of(model)
    text, committed = list(range(9)), []
    drafter.open(spec(1, text, WARM, KEY))
    for accepted in (1, 4, 0, 2, 3):
        [block] = drafter.draft([DraftJob(1, tuple(committed), 5)])
        check(block, uncached(model, text, 5, WARM))
        committed = [*block.tokens[:accepted], 60]
        text += committed


def test_a_state_without_rollback_is_refused(llama):
    class Recurrent:
        config = Qwen3NextConfig(num_hidden_layers=4)

    with pytest.raises(ValueError, match="rolled back"):
        drafter_of(Recurrent())


def trunk(tree):
    """The first draft at each position, one after the other."""
    path, children = [], tree.children(-1)
    while children:
        path.append(children[0])
        children = tree.children(path[-1])
    return path


@torch.inference_mode()
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_tree_is_the_chain_with_those_beside_it_that_would_win_next(llama, sampling):
    text = [3, 1, 4, 1, 5, 4]
    [chain], [tree] = (
        opened(llama, COUPLED, sampling).draft([DraftJob(1, (4,), 5, width=width)]) for width in (1, 3)
    )
    path = trunk(tree)
    assert tuple(tree.tokens[draft] for draft in path) == chain.tokens
    assert [tree.max_q[draft] for draft in path] == pytest.approx(chain.max_q)
    for k, above in enumerate([-1, *path[:-1]]):
        logits = llama(torch.tensor([[*text, *chain.tokens[:k]]]), use_cache=False).logits[0, -1:].float()
        scores = logits[0].double()
        if sampling.temperature:
            position = len(text) + k
            scores = target_probs(logits, sampling)[0].double().log()
            scores += Noise(SEED, 0).gumbel(position, len(scores))
        best = scores.topk(3)
        finite = int(best.values.isfinite().sum())
        assert [tree.tokens[draft] for draft in tree.children(above)] == best.indices[:finite].tolist()
    for draft in set(range(len(tree.tokens))) - set(path):
        assert tree.children(draft) == []


def test_a_law_that_sends_rows_gets_a_chain_however_wide_it_asks(llama):
    [chain], [same] = (opened(llama, REJECTION).draft([DraftJob(1, (), 4, width=each)]) for each in (1, 3))
    assert (same.tokens, same.parents) == (chain.tokens, None)
