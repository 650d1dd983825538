"""Where answers end: an end of sequence or a stop string anywhere in a block."""

from dataclasses import replace

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.speculation.request import FinishReason
from tests.verifier_service.helpers import accounted, alone, oracle
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting


@pytest.mark.parametrize("block_length", [1, 4, 16])
def test_an_end_of_sequence_anywhere_in_a_block_ends_the_answer_there(
    loaded, spec, request_for, block_length
):
    request = request_for(temperature=1.0, max_tokens=14)
    truth = alone(build_engine(loaded, spec, None, NoOpTracer()), request).token_ids
    drafter_text = [*request.prompt_ids, *truth]
    firsts = [at for at, token in enumerate(truth) if token not in truth[:at]]
    assert len(firsts) > 6
    for at in firsts:
        ending = replace(loaded, stop_ids=frozenset({truth[at]}))
        engine = build_engine(
            ending,
            replace(spec, block_length=block_length),
            LocalDrafting(oracle(drafter_text)),
            NoOpTracer(),
        )
        answer = alone(engine, request)
        assert answer.token_ids == truth[:at]
        assert answer.text == loaded.tokenizer.decode(truth[:at])
        assert answer.finished.reason is FinishReason.STOP
        assert accounted(answer).accepted_tokens == at - answer.finished.provenance.bonus_tokens
        assert engine.load().kv_tokens == 0


@pytest.mark.parametrize("block_length", [1, 16])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_a_stop_string_anywhere_ends_the_answer_before_it(engine_with, request_for, block_length, size):
    whole = alone(engine_with(), request_for(temperature=1.0, max_tokens=30))
    for start in range(0, len(whole.text) - size, 5):
        stop = whole.text[start : start + size]
        request = request_for(temperature=1.0, max_tokens=30, stop=(stop, "never to be found"))
        drafter = oracle([*request.prompt_ids, *whole.token_ids])
        answer = alone(engine_with(LocalDrafting(drafter), block_length=block_length), request)
        assert answer.text == whole.text[: whole.text.index(stop)]
        assert answer.finished.reason is FinishReason.STOP
        assert whole.token_ids[: len(answer.token_ids)] == answer.token_ids
        accounted(answer)
