"""Every parameter under speculation: tokens and log-probabilities are those of plain decoding."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import CONTEXT_LENGTH
from cluster.drafting import NgramDrafter
from cluster.speculation.controls import Controls
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.request import FinishReason
from cluster.speculation.sampling import Sampling
from drafter_service.drafters.causal_lm import CausalLmDrafter
from tests.verifier_service.helpers import Scripted, accounted, alone, oracle
from verifier_service.drafting.local import LocalDrafting

TEXT = "one two three one two three one two"
# Each parameter alone, at a value that changes the answer.
ALONE = {
    "temperature": {"sampling": Sampling(temperature=0.7)},
    "top_k": {"sampling": Sampling(top_k=4)},
    "top_p": {"sampling": Sampling(top_p=0.6)},
    "min_p": {"sampling": Sampling(min_p=0.2)},
    "typical_p": {"sampling": Sampling(typical_p=0.7)},
    "eta_cutoff": {"sampling": Sampling(eta_cutoff=0.05)},
    "logit_bias": {"controls": Controls(logit_bias=((40, 8.0), (41, -100.0)))},
    "repetition_penalty": {"controls": Controls(repetition_penalty=4.0)},
    "frequency_penalty": {"controls": Controls(frequency_penalty=1.5)},
    "frequency_penalty-": {"controls": Controls(frequency_penalty=-1.5)},
    "presence_penalty": {"controls": Controls(presence_penalty=-2.0)},
    "bad_words": {"controls": Controls(bad_words=((100,), (101, 102)))},
    "min_tokens": {"controls": Controls(min_tokens=20), "stop_ids": frozenset(range(60, 120))},
    "stop_ids": {"stop_ids": frozenset(range(100, 110))},
    "ignore_eos": {"ignore_eos": True},
    "stop": {"stop": ("e", "th")},
    "max_tokens": {"max_tokens": 7},
    "seed": {"seed": 123},
}


@pytest.fixture(scope="module")
def drafting(tiny_path):
    """Makes ports by the drafter's name."""
    model = load_model(resolve(str(tiny_path)), "float32", "cpu")
    made = {
        "ngram": NgramDrafter,
        "self": lambda: CausalLmDrafter(model, "tiny", "", CONTEXT_LENGTH, model.config.vocab_size),
    }
    return lambda name: LocalDrafting(made[name]())


def close(told, plain):
    """Log-probabilities agree, and the likeliest tokens with theirs."""
    assert [each.token for each in told] == [each.token for each in plain]
    for one, other in zip(told, plain, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-3)


def speculation_changes_nothing(engine_with, drafting, request):
    plain = alone(engine_with(), replace(request, law=NONE))
    for name in ("ngram", "self"):
        answer = alone(engine_with(drafting(name), block_length=4), replace(request, law=COUPLED))
        assert answer.token_ids == plain.token_ids
        assert answer.text == plain.text
        assert answer.finished.reason is plain.finished.reason
        accounted(answer)
        close(answer.logprobs, plain.logprobs)
    return plain


@pytest.mark.parametrize("name", ALONE)
def test_each_parameter_alone(engine_with, drafting, request_for, name):
    base = request_for(TEXT, 0.3, logprobs=3, max_tokens=30)
    answers = [
        speculation_changes_nothing(engine_with, drafting, replace(base, **({"seed": seed} | ALONE[name])))
        for seed in (11, 12)
    ]
    plain = [alone(engine_with(), replace(base, law=NONE, seed=seed)) for seed in (11, 12)]
    if name not in ("temperature", "ignore_eos"):
        # The value is one that matters.
        assert [each.token_ids for each in answers] != [each.token_ids for each in plain]


tokens = st.integers(0, 511)
requests = st.fixed_dictionaries(
    {
        "sampling": st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
            top_k=st.sampled_from([0, 0, 3, 50]),
            top_p=st.sampled_from([1.0, 1.0, 0.5, 0.9]),
            min_p=st.sampled_from([0.0, 0.0, 0.1]),
            typical_p=st.sampled_from([1.0, 1.0, 0.8]),
            eta_cutoff=st.sampled_from([0.0, 0.0, 0.02]),
        ),
        "controls": st.builds(
            Controls,
            logit_bias=st.dictionaries(tokens, st.floats(-100, 20), max_size=4).map(
                lambda given: tuple(given.items())
            ),
            repetition_penalty=st.sampled_from([1.0, 1.2, 0.8]),
            frequency_penalty=st.sampled_from([0.0, 1.0, -1.0, 2.0]),
            presence_penalty=st.sampled_from([0.0, 1.0, -2.0]),
            bad_words=st.lists(st.lists(tokens, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple),
            min_tokens=st.integers(0, 12),
        ),
        "stop_ids": st.frozensets(tokens, max_size=20),
        "ignore_eos": st.booleans(),
        "stop": st.lists(st.text("eth ", min_size=1, max_size=3), max_size=2).map(tuple),
        "logprobs": st.sampled_from([None, 0, 2, 20]),
        "seed": st.integers(0, 2**64 - 1),
        "max_tokens": st.integers(1, 25),
    }
)


@settings(
    # Many more with `make verify`.
    max_examples=int(os.environ.get("TRUEDRAFT_EXAMPLES", "30")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(fields=requests)
def test_random_combinations(engine_with, drafting, request_for, fields):
    answer = speculation_changes_nothing(engine_with, drafting, request_for(TEXT, **fields))
    controls = fields["controls"]
    assert len(answer.token_ids) >= min(controls.min_tokens, fields["max_tokens"])
    assert not fields["stop_ids"] & set(answer.token_ids)
    assert len(answer.logprobs) == (0 if fields["logprobs"] is None else len(answer.token_ids))
    for word in controls.bad_words:
        if len(word) == 1:
            assert word[0] not in answer.token_ids


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("name", ["ngram", "self"])
def test_what_is_forbidden_stays_so_under_the_other_laws(engine_with, drafting, request_for, law, name):
    controls = Controls(
        logit_bias=tuple((token, -100.0) for token in range(0, 500, 2)), bad_words=((101,),), min_tokens=20
    )
    request = request_for(TEXT, 1.5, law, controls=controls, stop_ids=frozenset(range(201, 300)))
    answer = alone(engine_with(drafting(name)), request)
    assert len(answer.token_ids) >= 20
    assert all(token % 2 or token >= 500 for token in answer.token_ids)
    assert 101 not in answer.token_ids
    assert not set(range(201, 300)) & set(answer.token_ids)


@pytest.mark.parametrize("at", [3, 5, 8])
def test_drafts_do_not_carry_past_a_stop_token(engine_with, request_for, at):
    truth = alone(engine_with(), request_for(law=NONE)).token_ids
    assert truth[at] not in truth[:at]
    request = request_for(stop_ids=frozenset({truth[at]}), logprobs=1)
    drafter = oracle([*request.prompt_ids, *truth])
    answer = alone(engine_with(LocalDrafting(drafter), block_length=8), request)
    assert answer.token_ids == truth[:at]
    assert answer.finished.reason is FinishReason.STOP
    assert len(answer.logprobs) == answer.finished.output_tokens == at


def test_a_drafted_end_that_the_target_rejects_ends_nothing(engine_with, request_for, loaded):
    [end] = loaded.stop_ids
    drafter = Scripted(lambda text, length: [end] * length)
    plain = alone(engine_with(), request_for(law=NONE))
    assert alone(engine_with(LocalDrafting(drafter)), request_for()).token_ids == plain.token_ids


def test_logprobs_are_the_models_own(engine_with, request_for, tiny_path):
    request = request_for(TEXT, 0.7, NONE, logprobs=4, sampling=Sampling(temperature=0.7, top_k=2))
    answer = alone(engine_with(), request)
    model = load_model(resolve(str(tiny_path)), "float32", "cpu")
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.prompt_ids, *answer.token_ids]])).logits[0]
    rows = torch.log_softmax(logits[len(request.prompt_ids) - 1 : -1].double(), dim=-1)
    for told, token, row in zip(answer.logprobs, answer.token_ids, rows, strict=True):
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [value for _, value in told.top] == pytest.approx(row.topk(4).values.tolist(), abs=1e-3)


@pytest.mark.parametrize("stop", [(), ("th",)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [1, 7, 20])
@pytest.mark.parametrize("name", ["ngram", "self", None])
def test_an_interrupted_answer_goes_on_as_it_would_have(
    engine_with, drafting, request_for, cut, temperature, stop, name
):
    """From any number of tokens received, under penalties that see the output."""
    controls = Controls(frequency_penalty=0.5, min_tokens=25)
    request = request_for(TEXT * 5, temperature, controls=controls, stop=stop, logprobs=1)
    whole = alone(engine_with(), request)
    port = drafting(name) if name else None
    rest = alone(engine_with(port, step_rows=64), replace(request, resumed_ids=tuple(whole.token_ids[:cut])))
    assert [*whole.token_ids[:cut], *rest.token_ids] == whole.token_ids
    assert whole.text.endswith(rest.text)
    assert rest.logprobs == whole.logprobs[cut:]
    assert rest.finished.reason is whole.finished.reason
    assert rest.finished.output_tokens == len(rest.token_ids)
    accounted(rest)


def inside_a_token(tokenizer, tokens):
    """A stop string that is first seen in the middle of a token of the text."""
    for token in tokens[8:]:
        piece = tokenizer.decode([token])
        if len(piece) > 1 and piece.isascii() and tokenizer.decode(tokens).index(piece[1:]) > 8:
            return piece[1:]
    raise AssertionError("no token would do")


@pytest.mark.parametrize("ends", ["length", "held back", "inside a token"])
def test_every_commit_can_be_resumed_with_the_text_that_came(engine_with, request_for, loaded, ends):
    """Text and tokens are released together; after the last, only the end is left to be told."""
    request = request_for("héllo 🦜 " * 4, 1.5, max_tokens=40)
    truth = alone(engine_with(), request).token_ids
    stops = {
        "length": (),
        "held back": ("the", "e "),
        "inside a token": (inside_a_token(loaded.tokenizer, truth),),
    }
    request = replace(request, stop=stops[ends])
    events = []
    engine = engine_with(LocalDrafting(NgramDrafter()))
    engine.submit(request, events.append)
    while engine.load().active or engine.load().queued:
        engine.step()
    *commits, finished = events
    whole = "".join(each.text for each in commits)
    # A client that did not see the end takes no text without its tokens for granted.
    commits = [each for each in commits if each.token_ids]
    assert ("".join(each.text for each in commits) == whole) == (ends != "inside a token")
    assert finished.reason is (FinishReason.STOP if ends == "inside a token" else FinishReason.LENGTH)
    for count in range(len(commits) + 1):
        ids = tuple(token for each in commits[:count] for token in each.token_ids)
        rest = alone(engine_with(), replace(request, resumed_ids=ids))
        assert "".join(each.text for each in commits[:count]) + rest.text == whole
        assert rest.finished.reason is finished.reason
        assert rest.finished.output_tokens == len(rest.token_ids) == finished.output_tokens - len(ids)
        told = f"{len(ids)} tokens were resumed" in " ".join(rest.finished.provenance.reasons)
        assert told == bool(ids)
    assert rest.token_ids == []
    assert (rest.finished.provenance.rounds == 0) == (finished.reason is FinishReason.LENGTH)
