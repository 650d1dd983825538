"""A target over two processes: the tokens of one, and no answer without the other."""

import copy
import multiprocessing
import os
import shutil
import signal
import threading
from dataclasses import replace

import pytest
import torch
from opentelemetry.trace import NoOpTracer
from transformers import AutoConfig

from cluster.drafting import NgramDrafter
from cluster.speculation.law import COUPLED, NONE
from cluster.speculation.provenance import Claim
from cluster.speculation.request import Failed
from tests.verifier_service.families import FAMILIES, random_model, reference
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.target import target as target_module
from verifier_service.target.following import run_rank
from verifier_service.target.target import TargetModel
from verifier_service.tensor_parallel.sharding import check_divisible

TEXT = [(5 * i * i + 1) % 500 for i in range(150)]


def follow_each(orders):
    """One target after another."""
    torch.set_num_threads(1)
    while (order := orders.get()) is not None:
        spec, port = order
        run_rank(spec, 1, port)


class Second:
    """The process of rank 1."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._orders = context.Queue()
        self.process = context.Process(target=follow_each, args=(self._orders,), daemon=True)
        self.process.start()

    def start(self, spec, port):
        self._orders.put((spec, port))

    def end(self):
        self._orders.put(None)
        self.process.join(30)
        self.process.kill()


@pytest.fixture(scope="module")
def second():
    process = Second()
    yield process
    process.end()


@pytest.fixture
def checkpoint(tmp_path, tiny_path):
    """Writes a random model of a family, with the tokenizer of the others."""

    def make(family):
        path = shutil.copytree(tiny_path, tmp_path / family)
        stock = random_model(family, 512)
        stock.save_pretrained(path)
        return stock, str(path)

    return make


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi", "phi3"])
def test_two_ranks_give_the_tokens_of_one_process(second, checkpoint, spec, request_for, monkeypatch, family):
    stock, path = checkpoint(family)
    loaded = load_target(replace(spec, model=path, tensor_parallel_size=2), second.start)
    try:
        assert loaded.numerics.row_invariant
        assert loaded.numerics.kernels.endswith("/transformers-layers/2-ranks")
        requests = [
            request_for(
                prompt_ids=tuple(TEXT[:length]),
                request_id=f"{length}/{temperature}",
                temperature=temperature,
                seed=length,
                max_tokens=10,
                ignore_eos=True,
            )
            for length in (5, 70)
            for temperature in (0.0, 1.0)
        ]
        loaded = replace(loaded, stop_ids=frozenset())
        # A cache so small that pages are given back, cleared and taken again.
        engine = build_engine(
            loaded, replace(spec, kv_tokens=160), LocalDrafting(NgramDrafter()), NoOpTracer()
        )
        for _ in range(2):
            answers = answer_all(engine, requests)
            assert [answer.token_ids for answer in answers] == [reference(stock, each) for each in requests]
            claims = {answer.finished.provenance.claim for answer in answers}
            assert claims == {Claim.IDENTICAL_TOKENS}
        # More than that: the bits of one process whose layers are transformers' too.
        monkeypatch.setattr(target_module, "can_decode", lambda model: False)
        single = TargetModel(copy.deepcopy(stock), "w", threads=1)
        rows = [target.score([TEXT], len(TEXT))[0] for target in (loaded.model, single)]
        assert torch.equal(*rows)
    finally:
        loaded.model.close()


def test_integers_are_shared_out_as_they_are(second, checkpoint, spec, monkeypatch):
    _, path = checkpoint("llama")
    monkeypatch.setattr(target_module, "can_decode", lambda model: False)
    spec = replace(spec, model=path, dtype="int8")
    single = load_target(spec).model.score([TEXT], 9)[0]
    both = load_target(replace(spec, tensor_parallel_size=2), second.start).model
    try:
        assert torch.equal(both.score([TEXT], 9)[0], single)
    finally:
        both.close()


def test_halves_are_summed_where_sums_need_not_be_the_same_bits(second, checkpoint, spec):
    """As on GPUs: nothing is claimed of bits that does not hold."""
    stock, path = checkpoint("phi")
    spec = replace(spec, model=path, dtype="bfloat16", tensor_parallel_size=2)
    loaded = load_target(spec, second.start)
    try:
        [logits] = loaded.model.score([TEXT], len(TEXT))
        with torch.inference_mode():
            expected = stock(torch.tensor([TEXT])).logits[0]
        assert float((logits - expected).abs().mean()) < 0.05 * float(expected.abs().mean())
        assert loaded.numerics.kernels.endswith("/cpu/sdpa/2-ranks")
    finally:
        loaded.model.close()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_ends_the_verifier_and_others_may_go_on(spec, request_for, sent):
    """Its process ends, or stands still."""
    second = Second()
    loaded = load_target(replace(spec, tensor_parallel_size=2, rank_timeout_s=3), second.start)
    engine = build_engine(loaded, spec, None, NoOpTracer())
    events = []
    begun = threading.Event()

    def take(event):
        events.append(event)
        begun.set()

    thread = threading.Thread(target=engine.run)
    engine.submit(request_for(max_tokens=400, ignore_eos=True, law=NONE), take)
    thread.start()
    assert begun.wait(30)
    os.kill(second.process.pid, sent)
    thread.join(30)
    second.process.kill()
    assert not thread.is_alive()
    assert events[-1] == Failed("a process that holds a share of the target does not answer", leaving=True)
    after = Answer()
    engine.submit(request_for(law=COUPLED), after.take)
    assert after.failure == "the verifier is shutting down"
    loaded.model.close()


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        (
            "llama",
            8,
            "tensor_parallel_size = 8 does not divide attention heads, of which this model has 4",
        ),
        ("llama", 4, "does not divide heads of keys and values, of which this model has 2"),
        ("qwen2", 3, "does not divide units of the MLP, of which this model has 128"),
        ("gpt2", 2, "models of type 'gpt2' have no plan for tensor parallelism"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_sentence(family, size, message):
    fields = {"num_attention_heads": 4, "intermediate_size": 128} | FAMILIES.get(family, {})
    with pytest.raises(ValueError, match=message):
        check_divisible(AutoConfig.for_model(family, **fields), size)


def test_a_model_is_refused_before_another_process_is_started(spec):
    def start(spec, port):
        pytest.fail("there is nothing to start")

    with pytest.raises(ValueError, match="does not divide"):
        load_target(replace(spec, tensor_parallel_size=3), start)
    with pytest.raises(ValueError, match="for a verifier that is served"):
        load_target(replace(spec, tensor_parallel_size=2))
