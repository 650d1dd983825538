"""From prompts to a drafter, on a tiny target."""

import json
import math
from dataclasses import replace

import pytest
import torch
from opentelemetry.trace import NoOpTracer
from safetensors.torch import save_file

from cluster.checkpoints import end_of_sequence_ids, load_model, load_tokenizer, resolve
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting.block_diffusion import DFLASH, DFLASH2, read_config, read_tensors
from cluster.drafting.features import LayerTaps
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from drafter_service.deployment import load
from drafter_service.drafters.dflash.loading import load_network
from drafter_service.spec import DrafterSpec
from drafter_service.training import answers
from drafter_service.training.beginning import (
    SELECTING,
    begin,
    go_on,
    pair,
    published_config,
    read_start,
)
from drafter_service.training.blocks import anchors_of, blocks_at, decay
from drafter_service.training.corpus import Corpus, Text
from drafter_service.training.measuring import Accepted, by_domain, pooled, walk
from drafter_service.training.network import freeze, frozen_with, greedy_drafts, hidden_rows
from drafter_service.training.prompts import Prompt, PromptsError, held_out, prompt_ids, read_prompts
from drafter_service.training.regenerate import Answering, temperatures
from drafter_service.training.run import Told, Wanted, summary, train
from drafter_service.training.trainer import Recipe, Trainer, kept, read_curve
from verifier_service.batch import answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

LAYERS = (1, 2)
SILENT = Told(lambda done, count: None, lambda minutes, loss: None)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("target") / "tiny", seed=1, layers=6, hidden=32)


@pytest.fixture(scope="module")
def prompts():
    words = ["river", "bridge", "market", "mill", "garden", "clock"]
    return [
        Prompt((("user", f"Draw the {word} number {number}."),), word)
        for word in words
        for number in range(8)
    ]


@pytest.fixture(scope="module")
def answered(target, prompts):
    """Answers of every temperature, by a model that also answers alone."""
    checkpoint = resolve(str(target))
    model, tokenizer = load_model(checkpoint, "float32", "cpu"), load_tokenizer(checkpoint)
    stock = load_model(checkpoint, "float32", "cpu")
    answers.prepare(model)
    taps = LayerTaps(model, LAYERS)
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts[:6]]
    # Of unlike lengths, so that some begin later than others.
    ids = [own[: len(own) - 2 * number] for number, own in enumerate(ids)]
    ends = end_of_sequence_ids(model, tokenizer)
    generator = torch.Generator().manual_seed(1)
    heat = [0.0, 1.0, 0.0, 0.7, 0.0, 1.0]
    return stock, answers.answer(model, taps, ids, heat, 24, ends, generator), ends


def test_greedy_answers_are_those_of_plain_decoding(answered):
    stock, found, ends = answered
    for each in (one for one in found if not one.temperature):
        text = each.tokens[: each.prompt].tolist()
        while len(text) < len(each.tokens):
            with torch.inference_mode():
                text.append(int(stock(torch.tensor([text])).logits[0, -1].argmax()))
        assert text == each.tokens.tolist()
        assert len(text) == each.prompt + 24 or text[-1] in ends


def test_features_and_distributions_are_those_of_one_forward(answered):
    stock, found, _ = answered
    for each in found:
        assert len(each.features) == len(each.tokens) - 1
        with torch.inference_mode():
            output = stock(each.tokens[None].long(), output_hidden_states=True)
        states = torch.cat([output.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1)
        torch.testing.assert_close(each.features.float(), states[:-1], atol=2e-2, rtol=2e-3)
        probs = torch.softmax(output.logits[0, each.prompt - 1 : -1], dim=-1)
        kept = probs.gather(-1, each.top_ids.long())
        torch.testing.assert_close(each.top_probs.float(), kept, atol=2e-3, rtol=0)
        assert bool((each.top_probs[:, 0] >= each.top_probs[:, 1]).all())


@pytest.fixture(scope="module")
def trained(target, prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    wanted = Wanted(str(target), layers=1, block=4, vocabulary=200)
    recipe = Recipe(minutes=0.15, rate=3e-3, texts=4, anchors=8, every=3.0)
    with pytest.MonkeyPatch.context() as patched:
        # Half precision, where it is fast, gives a target of random weights other answers than those served.
        patched.setattr("drafter_service.training.run._dtype", lambda device: "float32")
        return out, train(wanted, prompts, Answering(batch=16, most=24), recipe, out, SILENT)


def test_training_lowers_the_loss_and_leaves_a_published_checkpoint(trained, target):
    out, result = trained
    assert result.curve[-1].loss < result.curve[0].loss
    assert [point.step for point in result.curve] == sorted({point.step for point in result.curve})
    network, draft_ids = load_network(out, "float32", "cpu")
    assert len(draft_ids) == 200
    assert network.config.block_size == 4
    assert network.config.layer_ids == (1, 2, 3) or len(network.config.layer_ids) == 3
    figures = summary(result)
    assert set(figures["held_out"]) <= {"river", "bridge", "market", "mill", "garden", "clock"}
    assert all(1.0 <= each["acceptance_length"] <= 4.0 for each in figures["held_out"].values())


def test_what_is_counted_at_the_end_of_training_is_what_the_engine_counts(trained, target):
    """Greedy answers once more, served with the drafter: as many rounds, text by text."""
    out, _ = trained
    texts = Corpus(out / "work").texts()
    frozen = freeze(load_model(resolve(str(target)), "float32", "cpu"), texts, 200)
    network, _ = load_network(out, "float32", "cpu")
    greedy = [text for text in texts if not text.temperature]
    counted = [pooled(by_domain(network, frozen, [text])) for text in greedy]
    spec = VerifierSpec(str(target), drafter=str(out), planner=PlannerName.FIXED, block_length=3, threads=1)
    drafter = load(DrafterSpec(str(target), kind="dflash", model=str(out), threads=1)).drafter
    engine = build_engine(load_target(spec), spec, LocalDrafting(drafter), NoOpTracer())
    requests = [
        GenerationRequest(
            request_id=str(number),
            prompt_ids=tuple(text.tokens[: text.prompt].tolist()),
            sampling=Sampling(temperature=0.0),
            law=COUPLED,
            requested_law=COUPLED,
            seed=0,
            max_tokens=len(text.tokens) - text.prompt,
        )
        for number, text in enumerate(greedy)
    ]
    # The first round comes with the prompt. Features were kept in half precision, which may turn a draft.
    served = [answer.finished.provenance.rounds - 1 for answer in answer_all(engine, requests)]
    alike = sum(one == other.rounds for one, other in zip(served, counted, strict=True))
    assert alike >= 0.9 * len(greedy)
    assert sum(other.emitted for other in counted) > 1.2 * sum(served)


def test_held_out_texts_are_not_trained_on(trained, tmp_path):
    out, _ = trained
    texts = Corpus(out / "work").texts()
    assert {text.held_out for text in texts} == {True, False}
    model = load_network(out, "float32", "cpu")[0]
    with pytest.raises(ValueError, match="no answer"):
        Trainer(model, None, [text for text in texts if text.held_out], Recipe(), tmp_path)


def test_a_short_file_holds_some_prompts_out_and_one_of_them_is_greedy():
    """Chance alone would choose none of some files of fifty prompts; its choice of a long one is kept."""
    every = [Prompt((("user", f"Prompt {number}"),), "") for number in range(2_000)]
    for first in range(0, 1_000, 50):
        assert len(held_out(every[first : first + 50])) >= 4
    assert not held_out(every[:7])
    chosen = held_out(every)
    assert 0.04 < len(chosen) / len(every) < 0.09
    assert chosen >= held_out(every[:1_000])
    heat = temperatures([False, True, False, False, True])
    assert heat == [0.0, 0.0, 0.7, 1.0, 0.7]


@pytest.mark.parametrize("measured", [True, False])
def test_the_weights_in_the_end_are_those_that_did_best_on_held_out_texts(
    target, trained, tmp_path, measured
):
    """Where these contradict what is trained on, those are the first; without them they are the last."""
    out, _ = trained
    text = next(text for text in Corpus(out / "work").texts() if not text.held_out)
    model = load_model(resolve(str(target)), "float32", "cpu")
    other = (text.top_ids + 7) % model.config.vocab_size
    texts = [text, replace(text, held_out=True, top_ids=other)] if measured else [text]
    frozen = freeze(model, texts, 0)
    network = begin(read_config(out), model, 1)
    first = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    recipe = Recipe(minutes=0.02, rate=3e-3, texts=2, anchors=4, every=0.3)
    curve = Trainer(network, frozen, texts, recipe, tmp_path).train(lambda minutes, loss: None)
    assert curve[0].step == 1
    assert curve[-1].step > 1
    assert (kept(curve).step == 1) is measured
    moved = max(float((tensor - first[name]).abs().max()) for name, tensor in network.state_dict().items())
    assert (moved < 1e-3) is measured


def test_what_was_begun_is_gone_on_with(target, prompts, tmp_path):
    """Answers that are there stay, and a second run begins where the first one's state was written."""
    wanted = Wanted(str(target), layers=1, block=4, vocabulary=0)
    how, out = Answering(batch=16, most=12), tmp_path / "out"
    out.mkdir()
    few = prompts[:32]
    train(wanted, few, how, Recipe(minutes=0.03, texts=2, anchors=4, every=1.0), out, SILENT)
    first, shards = read_curve(out / "work"), sorted((out / "work").glob("shard-*"))
    times = [path.stat().st_mtime_ns for path in shards]
    train(wanted, few, how, Recipe(minutes=0.08, texts=2, anchors=4, every=1.0), out, SILENT)
    second = read_curve(out / "work")
    assert second[: len(first)] == first
    assert second[len(first)].step > first[-1].step
    assert [path.stat().st_mtime_ns for path in shards] == times
    for other in (prompts[1:33], few[:-1]):
        with pytest.raises(ValueError, match="begun with other prompts"):
            train(wanted, other, how, Recipe(minutes=0.1), out, SILENT)
    with pytest.raises(ValueError, match="another drafter"):
        train(replace(wanted, layers=2), few, how, Recipe(minutes=0.1), out, SILENT)


def test_a_block_sees_what_came_before_its_anchor_and_itself(target, trained):
    """Changing features from the anchor on, or another block's anchor, changes none of its rows."""
    out, _ = trained
    model = load_model(resolve(str(target)), "float32", "cpu")
    texts = [text for text in Corpus(out / "work").texts() if len(anchors_of(text)) > 12][:2]
    frozen = freeze(model, texts, 0)
    fields = published_config(model, (1, 2, 3), 1, 4, 7)
    (out / "probe").mkdir(exist_ok=True)
    (out / "probe" / "config.json").write_text(json.dumps(fields))
    network = begin(read_config(out / "probe"), model, 1)
    anchors = [[text.prompt + 3, text.prompt + 9] for text in texts]
    blocks = blocks_at(texts, anchors, 4, 7)
    with torch.inference_mode():
        rows = hidden_rows(network, frozen, blocks)
        later = blocks.features.clone()
        for row, text in enumerate(texts):
            later[row, text.prompt + 3 :] += 1
        changed = hidden_rows(network, frozen, replace(blocks, features=later))
        assert torch.allclose(changed[:, 0], rows[:, 0], atol=1e-5)
        assert not torch.allclose(changed[:, 1], rows[:, 1], atol=1e-3)
        alone = hidden_rows(network, frozen, blocks_at(texts, [own[:1] for own in anchors], 4, 7))
        assert torch.allclose(alone[:, 0], rows[:, 0], atol=1e-5)


def test_labels_are_the_tokens_after_the_anchor_and_end_with_the_text(answered):
    _, found, _ = answered
    each = found[0]
    text = Text("", False, 0.0, each.prompt, each.tokens, each.features, each.top_ids, each.top_probs)
    last = len(each.tokens) - 2
    blocks = blocks_at([text], [[each.prompt, last]], 4, 7)
    assert blocks.tokens[0, 0].tolist() == each.tokens[each.prompt + 1 : each.prompt + 4].tolist()
    # Greedy, so that what followed is what the target thinks likeliest.
    assert blocks.label_ids[0, 0, :, 0].tolist() == blocks.tokens[0, 0].tolist()
    assert blocks.weights[0, 1].tolist()[1:] == [0.0, 0.0]
    gamma = decay(3)
    assert blocks.weights[0, 0].tolist() == pytest.approx([math.exp(-k / gamma) for k in range(3)])
    assert (decay(15), decay(7)) == (7.0, 4.0)


def test_a_walk_counts_what_speculation_would_emit():
    class Said:
        prompt, tokens = 2, torch.tensor([1, 2, 3, 4, 5, 6, 7])

    found = Accepted()
    # Right twice, then wrong at once, then nothing drafted.
    drafts = {2: [4, 5, 9], 5: [], 6: []}
    walk(Said, lambda at: drafts[at], found)
    assert (found.rounds, found.emitted, found.undrafted) == (1, 3, 1)
    assert (found.length, found.overall) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 2: not an object"),
        ('{"prompt": "a", "text": "b"}', "line 2: unknown field 'text'"),
        ('{"domain": "a"}', "line 2: either prompt or messages"),
        ('{"prompt": ""}', "line 2: role and content"),
        ('{"prompt": "a", "domain": 3}', "line 2: domain is a string"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(PromptsError, match=message):
        read_prompts(path)


def test_prompts_are_taken_once(tmp_path):
    path = tmp_path / "prompts.jsonl"
    turns = '{"messages": [{"role": "user", "content": "one"}]}'
    path.write_text(f'{{"prompt": "one"}}\n\n{turns}\n{{"prompt": "two", "domain": "chat"}}\n')
    assert read_prompts(path) == [Prompt((("user", "one"),), ""), Prompt((("user", "two"),), "chat")]
    path.write_text("\n")
    with pytest.raises(PromptsError, match="has no prompts"):
        read_prompts(path)


@pytest.fixture(scope="module")
def plain_drafter(trained, tmp_path_factory):
    """What was trained, without convolutions and selector: a DFlash drafter."""
    out, folder = trained[0], tmp_path_factory.mktemp("plain")
    fields = json.loads((out / "config.json").read_text())
    assert fields["architectures"] == [DFLASH2]
    for name in SELECTING:
        del fields["dflash_config"][name]
    (folder / "config.json").write_text(json.dumps(fields | {"architectures": [DFLASH]}))
    kept = {
        name: t for name, t in read_tensors(out).items() if "_conv" not in name and "selector" not in name
    }
    save_file(kept, folder / "model.safetensors")
    return folder


def test_a_drafter_that_is_trained_further_begins_with_what_it_drafts(plain_drafter, target, trained):
    """Convolutions and selector that are added change nothing at first, and something once trained."""
    model = load_model(resolve(str(target)), "float32", "cpu")
    start = read_start(plain_drafter, model)
    (plain_drafter / "more").mkdir()
    (plain_drafter / "more" / "config.json").write_text(json.dumps(start.fields))
    network = begin(read_config(plain_drafter / "more"), model, 1)
    frozen = frozen_with(model, start.draft_ids)
    pair(network, frozen, model)
    go_on(network, start)
    text = next(text for text in Corpus(trained[0] / "work").texts() if len(anchors_of(text)) > 12)
    blocks = blocks_at([text], [list(anchors_of(text))], 4, start.network.config.mask_id)
    drafts = greedy_drafts(start.network, frozen, blocks)
    assert torch.equal(greedy_drafts(network, frozen, blocks), drafts)
    with torch.no_grad():
        network.candidate_selector.hidden_projection.weight.add_(1.0)
    assert not torch.equal(greedy_drafts(network, frozen, blocks), drafts)


def test_training_goes_on_from_another_drafter(plain_drafter, target, prompts, tmp_path):
    wanted = Wanted(str(target), layers=5, block=9, vocabulary=7, start=str(plain_drafter))
    recipe = Recipe(minutes=0.02, texts=2, anchors=4, every=1.0)
    train(wanted, prompts[:16], Answering(batch=16, most=12), recipe, tmp_path, SILENT)
    network, draft_ids = load_network(tmp_path, "float32", "cpu")
    assert torch.equal(draft_ids, load_network(plain_drafter, "float32", "cpu")[1])
    assert (len(network.layers), network.config.block_size, network.config.selects) == (1, 4, True)


def test_another_targets_drafter_is_no_start(plain_drafter, tmp_path):
    other = build_tiny(tmp_path / "other", seed=1, layers=5, hidden=32)
    with pytest.raises(ValueError, match="another depth, width or vocabulary"):
        read_start(plain_drafter, load_model(resolve(str(other)), "float32", "cpu"))
