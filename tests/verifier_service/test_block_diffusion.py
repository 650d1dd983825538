"""Block-diffusion drafters served: a real engine, gRPC, and drafters of both kinds on a tiny target.

The target's head has rows for a few tokens only, so that a random drafter, which borrows it, is right now and
then; the recording drafter holds all features that it reads against the stock model's hidden states.
"""

import contextlib
import json
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from opentelemetry.trace import NoOpTracer
from safetensors.torch import load_file, save_file

from cluster.bench.rig import Loop
from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting.block_diffusion import read_config, read_fusing
from cluster.kernels.attention import PAGE
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim
from cluster.speculation.messages import SparseRows
from cluster.speculation.sampling import Sampling
from drafter_service.deployment import load
from drafter_service.server import DraftingServer
from drafter_service.spec import DrafterSpec
from tests.drafter_service.dflash.checkpoints import HIDDEN, TARGET_LAYERS, build_drafter
from tests.speculation.helpers import ALPHA, p_value
from tests.verifier_service.helpers import Rows, accounted, alone
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.target import TargetModel

SPOKEN = range(300, 308)
# Flat enough that the noise, which both sides share under coupled, decides often.
WARM = Sampling(temperature=2.0, top_k=4)
TEXTS = ["one two three one two", "the river rises in the hills above", "a b c " * 12, "def add("]
WINDOW = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12, "use_sliding_window": True}


def few_words(folder, hidden=HIDDEN, layers=TARGET_LAYERS):
    """A target that says few words."""
    build_tiny(folder, seed=1, layers=layers, hidden=hidden)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = torch.zeros_like(tensors["lm_head.weight"])
    head[list(SPOKEN)] = tensors["lm_head.weight"][list(SPOKEN)]
    save_file(tensors | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return few_words(tmp_path_factory.mktemp("target") / "tiny")


class Made:
    """A drafter's folder, the target that makes its features, and what drafts with it."""

    def __init__(self, folder, spec, loaded, dtype="float32"):
        self.folder, self.dtype = folder, dtype
        self.spec = replace(spec, block_length=5)
        model = load_model(loaded.checkpoint, "float32", "cpu")
        target = TargetModel(model, "w", threads=1, fusing=read_fusing(folder, dtype))
        self.loaded = replace(loaded, model=target)

    def drafter(self):
        return load(
            DrafterSpec(
                self.loaded.checkpoint.path,
                kind="dflash",
                model=str(self.folder),
                dtype=self.dtype,
                threads=1,
            )
        )

    def engine(self, drafting=None, **fields):
        return build_engine(self.loaded, replace(self.spec, **fields), drafting, NoOpTracer())


@pytest.fixture(scope="module")
def speaking(target, spec):
    """The target, loaded and checked once."""
    return load_target(replace(spec, model=str(target)))


@pytest.fixture(scope="module")
def made(tmp_path_factory, speaking, spec):
    """Makes drafters for the target, each once."""
    held = {}

    def make(selects=False, dtype="float32", **changes):
        key = json.dumps([selects, dtype, changes])
        if key not in held:
            folder = build_drafter(tmp_path_factory.mktemp("drafter") / "d", selects=selects, **changes)
            held[key] = Made(folder, spec, speaking, dtype)
        return held[key]

    return make


class Recording:
    """A drafter that keeps what it reads, by text, and how much it drafted."""

    def __init__(self, drafter):
        self._drafter = drafter
        self.read, self._texts, self.drafted = {}, {}, 0

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def open(self, spec):
        self._texts[spec.sequence] = list(spec.prompt_ids), []
        self._drafter.open(spec)

    def draft(self, jobs):
        for job in jobs:
            text, rows = self._texts[job.sequence]
            text.extend(job.committed)
            if job.fused is not None:
                rows.extend(job.fused)
            assert len(rows) == len(text) - 1
            self.read[tuple(text)] = torch.stack(rows)
        blocks = self._drafter.draft(jobs)
        self.drafted += sum(len(block.tokens) for block in blocks)
        return blocks


@contextlib.contextmanager
def serving(loaded, loop, ports=None):
    """A drafter's server on a loop; its address and what its drafter reads."""
    drafter = Recording(loaded.drafter)
    server = DraftingServer(drafter, loaded.tokenizer_hash, loaded.vocab_size, "drafter", NoOpTracer())
    address = loop.do(server.start("127.0.0.1", ports))
    try:
        yield address, drafter
    finally:
        loop.do(server.stop())


def connected(remote):
    """Waits until it is."""
    deadline = threading.Event()
    for _ in range(1000):
        if remote.state == "connected":
            break
        deadline.wait(0.01)
    assert remote.state == "connected", remote.state


@contextlib.contextmanager
def verifying(made, address, loop, **fields):
    """An engine on a thread that drafts over gRPC; address: of the drafter, or what gives it."""
    loaded = made.loaded
    hello = HelloInfo(
        loaded.tokenizer_hash,
        len(loaded.tokenizer),
        "target",
        "",
        "verifier",
        features=loaded.model.fuser.info,
    )
    remote = RemoteDrafting(StaticResolver(address), hello, loop.loop)
    engine = made.engine(remote, **fields)
    try:
        connected(remote)
        yield engine, remote
    finally:
        loop.do(remote.aclose())


@pytest.fixture
def loop():
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def asked(made, request_for):
    """Requests of several texts and seeds."""

    def make(law=COUPLED, sampling=WARM, texts=TEXTS, seeds=2, **fields):
        return [
            request_for(text, law=law, sampling=sampling, seed=seed, request_id=f"{text}/{seed}", **fields)
            for text in texts
            for seed in range(seeds)
        ]

    return make


def truths(made, requests):
    return [a.token_ids for a in answer_all(made.engine(), [replace(each, law=NONE) for each in requests])]


def holds_what_the_stock_model_says(made, drafter):
    """All that a drafter read is the projection of the stock model's hidden states."""
    stock = load_model(made.loaded.checkpoint, "float32", "cpu")
    layers, projection = read_config(made.folder).layer_ids, read_fusing(made.folder, "float32").projection
    assert drafter.read
    near = 1e-4 if made.dtype == "float32" else 0.05
    for text, rows in drafter.read.items():
        with torch.inference_mode():
            states = stock(torch.tensor([text]), output_hidden_states=True).hidden_states
            features = torch.cat([states[layer + 1][0, :-1] for layer in layers], dim=-1)
            torch.testing.assert_close(rows.float(), projection(features), atol=near, rtol=near)


@pytest.mark.parametrize(
    ("selects", "dtype", "width"),
    [(False, "float32", 1), (True, "float32", 3), (False, "bfloat16", 3), (True, "bfloat16", 1)],
)
def test_answers_are_those_of_plain_decoding(made, asked, loop, selects, dtype, width):
    service = made(selects, dtype)
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop, block_width=width) as (
            engine,
            remote,
        ),
    ):
        for sampling in (Sampling(temperature=0.0), WARM):
            requests = asked(sampling=sampling)
            answers = answer_all(engine, requests)
            assert [answer.token_ids for answer in answers] == truths(service, requests)
            provenances = [accounted(answer) for answer in answers]
            assert {each.claim for each in provenances} == {Claim.IDENTICAL_TOKENS}
            accepted, drafted = (
                sum(getattr(each, name) for each in provenances)
                for name in ("accepted_tokens", "draft_tokens")
            )
            # Greedy answers go round in circles that a random drafter does not know.
            assert (0.02 / width if sampling is WARM else 0) < accepted / drafted < 0.95
            assert not any(each.fallbacks for each in provenances)
        # A block may be under way when its answer ends.
        assert set(remote.dropped) <= {"sequence"}
        holds_what_the_stock_model_says(service, drafter)


# Two words a position, so that every continuation is likely enough to be counted.
PAIRS = Sampling(temperature=2.0, top_k=2)
SEEDS = 700


@pytest.fixture(scope="module")
def reference(target, loaded):
    """Every continuation of three tokens, with its probability."""
    rows = Rows(load_model(resolve(str(target)), "float32", "cpu"), PAIRS)
    law, prompt = Counter(), loaded.tokenizer("one two")["input_ids"]

    def walk(text, p):
        if len(text) == len(prompt) + 3:
            law[tuple(text[len(prompt) :])] += p
            return
        row = rows(text)
        for token in row.nonzero()[:, 0].tolist():
            walk([*text, token], p * float(row[token]))

    walk(prompt, 1.0)
    return law


def outcomes(service, drafter, request_for, law):
    requests = [
        request_for("one two", law=law, sampling=PAIRS, max_tokens=4, seed=seed, request_id=str(seed))
        for seed in range(SEEDS)
    ]
    engine = service.engine(LocalDrafting(drafter), max_queued=SEEDS, block_length=3)
    answers = answer_all(engine, requests)
    assert {answer.finished.provenance.claim for answer in answers} == {Claim.EXACT_LAW}
    accepted = sum(accounted(answer).accepted_tokens for answer in answers)
    assert accepted > 0.1 * SEEDS
    return [tuple(answer.token_ids[:3]) for answer in answers]


def fits(found, law):
    cells = {cell: index for index, cell in enumerate(law)}
    return p_value([cells[each] for each in found], torch.tensor(list(law.values())))


@pytest.mark.parametrize("selects", [False, True])
@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_strict_laws_follow_the_target_exactly(made, request_for, reference, law, selects):
    service = made(selects)
    assert fits(outcomes(service, service.drafter().drafter, request_for, law), reference) > ALPHA


def test_a_proposal_that_was_not_drawn_from_is_caught(made, request_for, reference):
    service = made()

    class Flattering(Recording):
        """Says that it drew likelier tokens more often than it did."""

        def draft(self, jobs):
            def changed(block):
                if block.proposal is None:
                    return block
                probs = block.proposal.probs**8
                probs = (probs / probs.sum(-1, keepdim=True)).float()
                return replace(block, proposal=SparseRows(block.proposal.ids, probs))

            return [changed(block) for block in super().draft(jobs)]

    drafter = Flattering(service.drafter().drafter)
    assert fits(outcomes(service, drafter, request_for, REJECTION), reference) < ALPHA


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


def test_a_drafter_that_is_lost_costs_rounds_and_the_next_one_gets_what_is_kept(made, asked, loop):
    service = made()
    requests = asked(texts=TEXTS[:2], seeds=2, max_tokens=120)
    address = []
    with contextlib.ExitStack() as second:
        with contextlib.ExitStack() as first:
            found, before = first.enter_context(serving(service.drafter(), loop))
            address.append(found)
            engine, remote = second.enter_context(verifying(service, lambda: address[-1], loop))
            answers = [Answer() for _ in requests]
            for each, answer in zip(requests, answers, strict=True):
                engine.submit(each, answer.take)
            while before.drafted < 100:
                engine.step()
        for _ in range(5):
            engine.step()
        found, after = second.enter_context(serving(service.drafter(), loop))
        address.append(found)
        # Answers would be over before it is found.
        connected(remote)
        while not all(answer.finished for answer in answers):
            engine.step()
        assert [answer.token_ids for answer in answers] == truths(service, requests)
        lost = Counter()
        for answer in answers:
            lost.update(accounted(answer).fallbacks)
        assert lost
        assert after.drafted
        holds_what_the_stock_model_says(service, after)


@pytest.mark.parametrize("changes", [{"max_position_embeddings": 40}, WINDOW], ids=["context", "window"])
def test_texts_longer_than_the_drafter_sees(made, request_for, loop, changes):
    service = made(**changes)
    request = request_for("one two three " * 4, sampling=WARM, max_tokens=100)
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop) as (
            engine,
            _,
        ),
    ):
        answer = alone(engine, request)
        assert [answer.token_ids] == truths(service, [request])
        assert drafter.drafted
        furthest = max(map(len, drafter.read))
        end = len(request.prompt_ids) + len(answer.token_ids)
        assert end > 100
        # Beyond its context it is not asked; a window slides.
        assert (furthest > 100) == (changes is WINDOW) or accounted(answer).draft_tokens < end


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
