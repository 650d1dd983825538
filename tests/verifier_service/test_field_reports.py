"""Faults that were reported of other engines, each as a kind, where no other test has it already.

Others: ends and stops inside blocks in test_engine_endings.py, parameters alone and together and
log-probabilities in test_parameters.py, mixed batches, prompts in chunks and drafters of a shorter context in
test_engine*.py and test_strict_laws.py, grammars and calls in test_grammar.py and test_served.py.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.drafting import NgramDrafter
from cluster.speculation.controls import Controls
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.request import FinishReason
from cluster.speculation.sampling import Sampling, target_probs
from tests.verifier_service.helpers import Mimic, Rows, Scripted, accounted, alone, oracle
from tests.verifier_service.served import served
from truedraft.v1 import inference_pb2 as pb
from verifier_service.drafting.local import LocalDrafting

LAWS = pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)


def ngram():
    return LocalDrafting(NgramDrafter())


@pytest.mark.parametrize("length", [1, 4, 16, 32, 64])
def test_a_prompt_of_one_word_is_answered_alike_at_every_block_length(engine_with, request_for, length):
    """vllm#41758, TensorRT-LLM#11300."""
    request = request_for("serving " * 48, seed=42, max_tokens=32)
    plain = alone(engine_with(), replace(request, law=NONE))
    for port in (ngram(), LocalDrafting(oracle([*request.prompt_ids, *plain.token_ids]))):
        answer = alone(engine_with(port, block_length=length), request)
        assert answer.token_ids == plain.token_ids
    assert accounted(answer).accepted_tokens > 0


@LAWS
def test_a_token_with_the_least_bias_never_comes(engine_with, request_for, law):
    """sglang#10617."""
    request = request_for("the the the the", 1.0, law, max_tokens=200, ignore_eos=True)
    # It would come most, whoever drafts.
    [(token, _)] = Counter(alone(engine_with(ngram()), request).token_ids).most_common(1)
    biased = replace(request, controls=Controls(logit_bias=((token, -100.0),)))
    # A drafter that proposes nothing else.
    for port in (ngram(), LocalDrafting(Scripted(lambda text, length: [token] * length))):
        answer = alone(engine_with(port), biased)
        assert len(answer.token_ids) == 200
        assert token not in answer.token_ids


@LAWS
def test_min_p_holds_at_every_drafted_corrected_and_bonus_position(engine_with, request_for, tiny_path, law):
    """vllm#42744."""
    model = load_model(resolve(str(tiny_path)), "float32", "cpu")
    sampling = Sampling(temperature=1.5, min_p=0.2)
    request = replace(request_for("one two one two", 1.5, law, max_tokens=80), sampling=sampling)
    truth = [*request.prompt_ids, *alone(engine_with(), replace(request, law=NONE)).token_ids]
    # Right two times of three.
    near = Scripted(lambda text, length: [t if t % 3 else t + 1 for t in truth[len(text) :][:length]])
    drafter = near if law == COUPLED else Mimic(Rows(model, sampling))
    answer = alone(engine_with(LocalDrafting(drafter), block_length=4), request)
    provenance = accounted(answer)
    assert provenance.accepted_tokens
    assert provenance.correction_tokens
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.prompt_ids, *answer.token_ids]])).logits[0].float()
    rows = target_probs(logits[len(request.prompt_ids) - 1 : -1], Sampling(temperature=1.5))
    for row, token in zip(rows, answer.token_ids, strict=True):
        assert row[token] >= 0.2 * row.max() * (1 - 1e-4)
    # Without it some would not have been allowed.
    free = alone(engine_with(ngram()), replace(request, sampling=Sampling(temperature=1.5)))
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.prompt_ids, *free.token_ids]])).logits[0].float()
    rows = target_probs(logits[len(request.prompt_ids) - 1 : -1], Sampling(temperature=1.5))
    assert any(row[t] < 0.2 * row.max() for row, t in zip(rows, free.token_ids, strict=True))


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_opposite_penalties_give_different_answers_and_those_of_plain_decoding(
    engine_with, request_for, name
):
    """vllm#18902, TensorRT-LLM PR#17701."""
    answers = []
    for penalty in (-2.0, 2.0):
        request = request_for("repeat hello hello", controls=Controls(**{name: penalty}))
        answer = alone(engine_with(ngram()), request)
        assert answer.token_ids == alone(engine_with(), replace(request, law=NONE)).token_ids
        answers.append(answer.token_ids)
    assert answers[0] != answers[1]
    assert len(set(answers[0])) < len(set(answers[1]))


async def test_requests_without_a_seed_are_not_all_alike(engine_with, loaded):
    """TensorRT-LLM#19487."""
    texts, seeds = set(), set()
    with served(engine_with(ngram()), loaded) as front:
        for _ in range(20):
            request = pb.GenerateRequest(prompt="one two", max_tokens=8)
            messages = [message async for message in front.service.answer(request, [])]
            texts.add("".join(message.text for message in messages[:-1]))
            seeds.add(messages[-1].provenance.seed)
    assert len(seeds) == 20
    assert len(texts) > 15


@LAWS
def test_the_temperature_is_the_verifiers_under_speculation(engine_with, request_for, law):
    """LiteRT-LM#3017, sglang PR#31214."""
    answers = {
        temperature: {
            tuple(alone(engine_with(ngram()), request_for("one", temperature, law, seed=seed)).token_ids)
            for seed in range(6)
        }
        for temperature in (0.0, 1.2)
    }
    assert (len(answers[0.0]), len(answers[1.2])) == (1, 6)


@pytest.mark.parametrize("length", [1, 8])
def test_text_tokens_and_log_probabilities_end_together_at_a_stop_string(
    engine_with, request_for, loaded, length
):
    """vllm PR#47616, sglang#27637."""
    whole = alone(engine_with(), request_for(temperature=1.0, max_tokens=40))
    for at in range(3, len(whole.text) - 6, 7):
        request = request_for(temperature=1.0, stop=(whole.text[at : at + 6],), logprobs=2)
        port = LocalDrafting(oracle([*request.prompt_ids, *whole.token_ids]))
        answer = alone(engine_with(port, block_length=length), request)
        assert answer.finished.reason is FinishReason.STOP
        assert len(answer.token_ids) == len(answer.logprobs) == answer.finished.output_tokens
        assert [told.token for told in answer.logprobs] == answer.token_ids
        # A token that the stop string begins in is left out, and the text before it in that token kept.
        decoded = loaded.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        assert answer.text.startswith(decoded.rstrip("�"))


def test_usage_is_what_came(engine_with, request_for, loaded):
    """sglang#39826."""
    for seed in range(12):
        request = request_for(temperature=1.0, seed=seed, max_tokens=64)
        answer = alone(engine_with(ngram(), block_length=8), request)
        assert answer.finished.output_tokens == len(answer.token_ids)
        assert answer.finished.input_tokens == len(request.prompt_ids)
        assert loaded.tokenizer.decode(answer.token_ids, skip_special_tokens=True) == answer.text


@pytest.mark.parametrize("length", [1, 5, 16])
@pytest.mark.parametrize("left", [1, 2, 5, 9])
def test_a_context_is_filled_to_its_end_and_no_further(engine_with, request_for, loaded, left, length):
    """vllm#5342, vllm#57941: prompt = context - 1, context - k."""
    ids = (request_for("one two three " * 300).prompt_ids)[: loaded.model.context - left]
    request = request_for(prompt_ids=ids, max_tokens=left, temperature=1.0, ignore_eos=True)
    plain = alone(engine_with(), replace(request, law=NONE))
    assert len(plain.token_ids) == left
    for port in (ngram(), LocalDrafting(oracle([*ids, *plain.token_ids, *range(40)]))):
        answer = alone(engine_with(port, block_length=length), request)
        assert answer.token_ids == plain.token_ids
        assert answer.finished.reason is FinishReason.LENGTH
        accounted(answer)
