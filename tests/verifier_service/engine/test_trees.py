"""Trees of drafts: whatever their shape, tokens are those of plain decoding, and what is left of them in the
cache is what decoding one token after another would have left."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.drafting.block_diffusion import read_fusing
from cluster.kernels.attention import PAGE
from cluster.scheduling import FixedPlanner, Round
from cluster.speculation.controls import Controls
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.messages import DraftBlock
from cluster.speculation.sampling import Sampling
from tests.drafter_service.dflash.checkpoints import VOCAB, build_drafter
from tests.verifier_service.families import FAMILIES, random_model, reference, served
from tests.verifier_service.helpers import Port, accounted, alone, answered
from tests.verifier_service.requests.test_grammar import REGEX
from tests.verifier_service.requests.test_under_way import Held, Restless
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine
from verifier_service.drafting.checking import fault_of
from verifier_service.drafting.local import LocalDrafting
from verifier_service.target.target import Rows, TargetModel

TEXT = [(5 * i * i + 1) % 500 for i in range(200)]


def grown(rng, right, length, width, vocab=512):
    """A tree that fits a plan: some of its drafts are the right ones, in any place among their siblings, and
    some siblings are alike."""
    tokens, parents, depths, true = [], [], [], []
    for _ in range(rng.randint(0, length * width)):
        full = Counter(parents)
        able = [at for at in range(-1, len(tokens)) if full[at] < width and (at < 0 or depths[at] < length)]
        if not able:
            break
        parent = rng.choice(able[-4:])
        depth = 0 if parent < 0 else depths[parent]
        goes_right = (parent < 0 or true[parent]) and depth < len(right) and rng.random() < 0.5
        token = right[depth] if goes_right else rng.randrange(vocab)
        tokens.append(token)
        parents.append(parent)
        depths.append(depth + 1)
        true.append((parent < 0 or true[parent]) and depth < len(right) and token == right[depth])
    return DraftBlock(tuple(tokens), (1.0,) * len(tokens), tuple(parents))


def trees(rng, truths):
    """A port with trees for each sequence; truths: whole texts, in order of arrival."""

    def reply(ticket):
        assert ticket.width >= 1
        right = truths[ticket.sequence - 1][ticket.base :]
        if ticket.width == 1:
            return [answered(ticket, right[: ticket.length])]
        return [replace(answered(ticket), block=grown(rng, right, ticket.length, ticket.width))]

    return Port(reply)


def whole(request, answer):
    return [*request.prompt_ids, *answer.token_ids]


controls = st.sampled_from(
    [
        Controls(),
        Controls(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2),
        Controls(bad_words=((7, 8), (100,)), min_tokens=5, logit_bias=((3, 2.0),)),
    ]
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    length=st.integers(1, 6),
    width=st.integers(2, 4),
    controls=controls,
    tokens=st.integers(1, 24),
    step_rows=st.sampled_from([3, 9, 512]),
)
def test_no_tree_changes_a_token_or_a_probability(
    engine_with, request_for, seed, temperature, length, width, controls, tokens, step_rows
):
    request = request_for(
        sampling=Sampling(temperature=temperature),
        controls=controls,
        seed=seed,
        max_tokens=tokens,
        logprobs=2,
    )
    plain = alone(engine_with(), replace(request, law=NONE))
    port = trees(random.Random(seed), [whole(request, plain)])
    planner = FixedPlanner(length, width=width)
    answer = alone(engine_with(port, planner, step_rows=step_rows, replay_share=1.0), request)
    assert (answer.token_ids, answer.text, answer.logprobs) == (plain.token_ids, plain.text, plain.logprobs)
    assert accounted(answer).fallbacks == {}


def test_a_grammar_is_followed_along_each_path(engine_with, request_for):
    request = request_for(temperature=1.0, grammar=REGEX, max_tokens=12)
    plain = alone(engine_with(), replace(request, law=NONE))
    port = trees(random.Random(3), [whole(request, plain)])
    answer = alone(engine_with(port, FixedPlanner(4, width=3)), request)
    assert answer.token_ids == plain.token_ids
    assert accounted(answer).accepted_tokens > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers_in_every_family_alone_and_in_a_batch(
    loaded, spec, request_for, family
):
    stock = random_model(family, loaded.model.vocab_size)
    target = served(loaded, stock)
    requests = [
        request_for(
            prompt_ids=tuple(TEXT[:prompt]),
            request_id=str(prompt),
            sampling=Sampling(temperature=temperature),
            seed=prompt,
            max_tokens=10,
        )
        for prompt, temperature in ((3, 1.0), (PAGE, 0.0), (40, 1.0))
    ]
    truths = [[*request.prompt_ids, *reference(stock, request)] for request in requests]
    planner = FixedPlanner(4, width=3)
    for together in (requests, requests[:1]):
        port = trees(random.Random(5), truths)
        engine = build_engine(target, replace(spec, step_rows=64), port, NoOpTracer(), planner=planner)
        answers = answer_all(engine, together)
        for request, answer, truth in zip(together, answers, truths, strict=False):
            assert whole(request, answer) == truth
        assert any(accounted(answer).accepted_tokens for answer in answers)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), pages=st.integers(5, 9))
def test_trees_live_in_a_cache_that_is_too_small_and_find_pages_of_others(
    engine_with, request_for, seed, pages
):
    rng = random.Random(seed)
    requests = [
        request_for(
            prompt_ids=tuple(TEXT[: rng.choice([2, PAGE, PAGE + 1, 2 * PAGE + 5])]),
            request_id=str(number),
            temperature=1.0,
            seed=number,
            # The longest fill the cache to its last token.
            max_tokens=rng.choice([3, 20, 2 * PAGE]),
        )
        for number in range(5)
    ]
    plain = [alone(engine_with(), replace(request, law=NONE)) for request in requests]
    port = trees(rng, [whole(*each) for each in zip(requests, plain, strict=True)])
    engine = engine_with(port, FixedPlanner(5, width=3), kv_tokens=pages * PAGE, replay_share=0.0)
    answers = answer_all(engine, requests)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert engine._pool.pages.held == 0


def test_a_tree_is_asked_for_under_coupled_alone_and_within_what_is_left_of_the_answer(
    engine_with, request_for
):
    asked = []

    def reply(ticket):
        asked.append((ticket.length, ticket.width))
        return [answered(ticket)]

    for law in (REJECTION, BLOCK):
        alone(engine_with(Port(reply), FixedPlanner(4, width=3)), request_for(law=law, max_tokens=6))
    assert {width for _, width in asked} == {1}
    asked.clear()
    alone(engine_with(Port(reply), FixedPlanner(4, width=3)), request_for(max_tokens=16, law=COUPLED))
    assert asked[0] == (4, 3)
    assert asked[-3:] == [(3, 1), (2, 1), (1, 1)]


BAD = {
    "later parents": ((1, -1), "whose parent does not come before it"),
    "parents of nobody": ((-2, 0), "whose parent does not come before it"),
    "fewer parents": ((-1,), "1 parents for 2 tokens"),
    "more parents": ((-1, 0, 1), "3 parents for 2 tokens"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_tree_is_a_fallback(engine_with, request_for, kind):
    parents, words = BAD[kind]
    request = request_for(max_tokens=12)
    plain = alone(engine_with(), request).token_ids
    port = Port(lambda ticket: [replace(answered(ticket), block=DraftBlock((1, 2), (1.0, 1.0), parents))])
    answer = alone(engine_with(port, FixedPlanner(4, width=2)), request)
    assert answer.token_ids == plain
    assert accounted(answer).fallbacks.keys() == {"invalid-block"}
    assert any(words in reason for reason in answer.finished.provenance.reasons)


def test_trees_larger_than_planned_are_faults():
    def fault(parents, length, width):
        return fault_of(DraftBlock((1,) * len(parents), (1.0,) * len(parents), parents), length, 512, width)

    assert fault((-1, -1, 0), 2, 2) == ""
    assert fault((-1, 0), 2, 1) == "a tree where a chain was asked for"
    assert "more than the 2 children" in fault((-1, -1, -1), 2, 2)
    assert "of depth 3 where at most 2" in fault((-1, 0, 1), 2, 2)
    assert "5 tokens where at most 4" in fault((-1, -1, 0, 0, 1), 2, 2)
    assert "3 tokens where at most 2" in fault_of(DraftBlock((1,) * 3, (1.0,) * 3), 2, 512, 2)


def test_what_is_left_of_a_tree_that_was_overtaken_is_what_follows_those_tokens(engine_with, request_for):
    request = request_for(max_tokens=20)
    text = whole(request, alone(engine_with(), replace(request, law=NONE)))
    port, answer = Held(), Answer()
    planner = Restless(4, hides=True, meanwhile=2, width=2)
    engine = engine_with(port, planner, block_length=4)
    engine.submit(request, answer.take)
    for _ in range(3):
        engine.step()
    [sequence] = engine._admission.active.values()
    [ticket] = port.tickets
    assert (ticket.width, len(sequence.tokens)) == (2, ticket.base + 2)
    right = text[ticket.base :][:4]
    # The right ones are last among their siblings, but for the last, which is missing.
    tokens, parents = (0, right[0], 0, right[1], 0, right[2]), (-1, -1, 1, 1, 3, 3)
    port._deliver(replace(answered(ticket), block=DraftBlock(tokens, (1.0,) * 6, parents)))
    engine.step()
    assert len(sequence.tokens) == ticket.base + 4
    [past] = sequence.past["drafters"].rounds
    assert past == Round(4, 3, 3, True, (1.0,) * 3, 2, (1, 1, 1), 0, 2.0)
    while answer.finished is None:
        for ticket in port.tickets[1:]:
            port.give(ticket, [])
        engine.step()
    assert answer.token_ids == text[-len(answer.token_ids) :]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_a_path_leaves_in_the_cache_is_what_its_tokens_leave_alone(fused_targets, seed):
    rng = random.Random(seed)
    target = rng.choice(fused_targets)
    prompt = rng.choice([1, PAGE - 1, PAGE + 4])
    tree = grown(rng, [rng.randrange(VOCAB) for _ in range(6)], 6, 3, VOCAB)
    path = [rng.randrange(-1, len(tree.tokens))]
    while path[0] >= 0:
        path.insert(0, tree.parent(path[0]))
    path = path[1:]
    last, tokens = TEXT[prompt] % VOCAB, [tree.tokens[draft] for draft in path]
    branched, straight = target.pool.open(), target.pool.open()
    for cache in (branched, straight):
        target.forward([Rows(cache, [token % VOCAB for token in TEXT[:prompt]], 0, 0)])
    above = (-1, *(parent + 1 for parent in tree.parents))
    count = len(above)
    [logits] = target.forward([Rows(branched, [last, *tree.tokens], prompt, count, above)])
    singles = [
        target.forward([Rows(straight, [token], prompt + at, 1)])[0]
        for at, token in enumerate([last, *tokens])
    ]
    assert torch.equal(logits[[0, *(draft + 1 for draft in path)]], torch.cat(singles))
    branched.gather(prompt + 1, [prompt + 1 + draft for draft in path])
    end = prompt + 1 + len(path)
    for cache in (branched, straight):
        cache.length = end
    assert torch.equal(branched.fused(0, end), straight.fused(0, end))
    after_path = [target.forward([Rows(cache, [5], end, 1)])[0] for cache in (branched, straight)]
    assert torch.equal(*after_path)
    for cache in (branched, straight):
        cache.release()


@pytest.fixture(scope="module")
def fused_targets(tmp_path_factory):
    """Through our own layers, and through transformers'."""
    folder = tmp_path_factory.mktemp("drafter")
    fields = {"hidden_size": 64, "num_target_layers": 2}
    build_drafter(folder, dflash_config={"target_layer_ids": [0, 1]}, **fields)
    fusing = read_fusing(folder, "float32")
    return [
        TargetModel(random_model(family, VOCAB), "w", threads=1, fusing=fusing)
        for family in ("llama", "phi3")
    ]


def test_ngram_trees_change_no_token_and_take_what_a_chain_would_miss(engine_with, request_for):
    text = "a b c d e. a b c f g. a b c d h. a b c"
    for temperature in (0.0, 1.0):
        request = request_for(text, temperature)
        plain = alone(engine_with(), replace(request, law=NONE)).token_ids
        port = LocalDrafting(NgramDrafter(minimum=1))
        answer = alone(engine_with(port, FixedPlanner(4, width=3)), request)
        assert answer.token_ids == plain
        assert accounted(answer).fallbacks == {}
