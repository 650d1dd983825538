"""What block-diffusion drafters are sent of the target's hidden states."""

from collections import Counter
from dataclasses import replace

import pytest

from cluster.checkpoints import resolve
from cluster.kernels.attention import PAGE
from cluster.speculation.law import REJECTION
from tests.drafter_service.dflash.checkpoints import build_drafter
from tests.verifier_service.block_diffusion.served import (
    TEXTS,
    WARM,
    Made,
    few_words,
    holds_what_the_stock_model_says,
    serving,
    truths,
    verifying,
)
from tests.verifier_service.helpers import accounted, alone
from verifier_service.batch import answer_all


def test_a_prompt_that_was_seen_before_brings_its_features(made, request_for, loop):
    service = made()
    [first, second] = [
        request_for("the river rises in the hills " * 8, seed=seed, sampling=WARM, request_id=str(seed))
        for seed in (1, 2)
    ]
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop) as (
            engine,
            _,
        ),
    ):
        alone(engine, first)
        read = len(drafter.read)
        answer = alone(engine, second)
        assert answer.finished.cached_tokens >= PAGE
        assert len(drafter.read) > read
        assert accounted(answer).fallbacks == {}
        assert [answer.token_ids] == truths(service, [second])
        holds_what_the_stock_model_says(service, drafter)


def test_who_gives_way_and_returns_goes_on_with_all_features(made, asked, loop, monkeypatch):
    service, gave_way = made(), []
    requests = asked(texts=TEXTS[:3], seeds=2, max_tokens=60)
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop, kv_tokens=12 * PAGE, replay_share=0.0) as (engine, _),
    ):
        preempt = engine._admission._preempt
        monkeypatch.setattr(engine._admission, "_preempt", lambda s: (gave_way.append(s.number), preempt(s)))
        answers = answer_all(engine, requests)
        assert gave_way
        assert [answer.token_ids for answer in answers] == truths(service, requests)
        assert not any(accounted(answer).fallbacks for answer in answers)
        holds_what_the_stock_model_says(service, drafter)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_on_the_wire_are_those_of_the_arithmetic(tmp_path, speaking, spec, request_for, loop, dtype):
    """A committed token is a row of d numbers; a drafted one under DFlash 2 its id, its statistic, and 16
    entries of 8 bytes."""
    wide = 512
    target = few_words(tmp_path / "target", hidden=wide, layers=4)
    folder = build_drafter(
        tmp_path / "drafter",
        selects=True,
        hidden_size=wide,
        num_target_layers=4,
        dflash_config={"target_layer_ids": [1, 2]},
    )
    loaded = replace(speaking, checkpoint=resolve(str(target)))
    service = Made(folder, spec, loaded, dtype)
    request = request_for("one two three " * 20, law=REJECTION, sampling=WARM, max_tokens=60)
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop, block_length=15) as (engine, remote),
    ):
        before = Counter(remote.traffic)
        alone(engine, request)
        moved = remote.traffic - before
    committed = max(map(len, drafter.read)) - 1
    per_committed = moved["fed"] / committed
    per_drafted = moved["received"] / drafter.drafted
    assert per_committed == pytest.approx(wide * (4 if dtype == "float32" else 2), rel=0.1)
    assert per_drafted == pytest.approx(4 + 4 + 16 * 8, rel=0.1)
