"""The measurements of lossy laws on a tiny model and on rows made by hand."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console

from cluster.bench.lossy import answers, exact
from cluster.bench.lossy.answers import Answered, Contestant, effects, repetition
from cluster.bench.lossy.drafters import DRAFTINGS, FLAT, SHORT_SIGHTED, Drafting, window
from cluster.bench.lossy.exact import TRUNCATIONS, places
from cluster.bench.lossy.report import Report, Size, as_json, draw, render
from cluster.bench.lossy.rounds import BLOCK, Round, acceptance_length, rounds
from cluster.bench.lossy.run import text_places
from cluster.bench.lossy.tasks import Task
from cluster.bench.machine import Machine
from cluster.speculation.catalogue import parse
from cluster.speculation.law import REJECTION
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import pack, truncate
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

P = torch.tensor([[0.6, 0.3, 0.05, 0.05]])
Q = torch.tensor([[0.2, 0.3, 0.5, 0.0]])


@pytest.fixture(scope="module")
def loaded(tiny_path):
    return load_target(VerifierSpec(model=str(tiny_path), threads=1))


def test_the_pitfall_by_hand():
    found = exact.pitfall(parse("truncation:min_p", {"min_p": 0.4}), "by hand", places(P, Q), 1, 4000)
    # A = {0, 1}: p_A = (2/3, 1/3); out = q on A + 1/2 p_A = (0.2 + 1/3, 0.3 + 1/6).
    assert found.tv_lossy.mean == pytest.approx(2 / 3 - (0.2 + 1 / 3), abs=1e-6)
    assert found.overshoot == pytest.approx((0.3 + 1 / 6) * 3, abs=1e-5)
    assert found.kept_lossy == pytest.approx(0.5, abs=1e-6)
    assert found.kept_strict == pytest.approx(0.2 + 0.3, abs=1e-6)
    assert found.tv_strict.mean == pytest.approx(0.0, abs=1e-12)
    assert found.there == found.tv_lossy.mean
    assert found.sampled_lossy == pytest.approx(found.tv_lossy.mean, abs=0.03)
    assert found.sampled_strict < 0.03
    assert found.noise < 0.03


def by_hand(count=400):
    """Rounds whose rows are all P, drafted from Q."""
    [row] = [truncate(each) for each in Q]
    made = []
    for seed in range(count):
        field = DraftField(derive_key(seed, Purpose.DRAFT), 0)
        tokens = tuple(field.draw(k, row) for k in range(BLOCK))
        block = DraftBlock(tokens, (max(row.probs),) * BLOCK, proposal=pack([row] * BLOCK))
        made.append(Round(P.expand(BLOCK + 1, -1), block, (Noise(seed, 0),)))
    return made


def test_acceptance_length_is_that_of_the_formula_where_rows_are_alike():
    kept = 0.2 + 0.3 + 0.05
    length = acceptance_length(REJECTION, by_hand())
    # Leviathan et al. (arXiv 2211.17192), equation 1.
    assert length.low < sum(kept**k for k in range(BLOCK + 1)) < length.high
    assert length.high - length.low < 0.4


def test_rounds_are_drafted_after_prefixes_of_the_text_and_by_the_drafter(loaded):
    text = list(range(3, 40))
    for drafting in (SHORT_SIGHTED, FLAT):
        made = rounds(loaded.model, drafting, text, 5)
        assert len(made) == 5
        for each in made:
            prefix = text[: each.noises[0].base]
            told = [*prefix, *each.block.tokens]
            [logits] = loaded.model.score([told], BLOCK + 1)
            torch.testing.assert_close(each.rows, target_probs(logits, Sampling()))
            seen = [told[: len(prefix) + k] for k in range(BLOCK)]
            if drafting.sight:
                logits = torch.cat(loaded.model.score([window(tokens) for tokens in seen], 1))
            q = target_probs(logits[:BLOCK], Sampling(temperature=drafting.temperature))
            sent = pack([truncate(row) for row in q])
            assert torch.equal(each.block.proposal.ids, sent.ids)
            torch.testing.assert_close(each.block.proposal.probs, sent.probs)
    assert len({noise for each in made for noise in each.noises}) == 20


def test_the_curve_begins_at_the_strict_laws_and_rises():
    strict, block, *relaxed = exact.curve("by hand", places(P, Q), by_hand(100))
    assert [strict.law, block.law] == ["rejection", "block"]
    assert {(each.tv.mean, each.kl.mean) for each in (strict, block)} == {(0.0, 0.0)}
    assert block.length.mean > strict.length.mean
    for name, settings in exact.CURVES.items():
        line = [each for each in relaxed if each.law == name]
        assert [each.params for each in line] == list(settings)
        for before, after in zip([strict, *line], line, strict=False):
            assert after.tv.mean >= before.tv.mean
            # The same drafts and uniforms: one that was kept still is.
            assert after.length.mean >= before.length.mean
            # Pinsker's inequality.
            assert after.kl.mean >= 2 * after.tv.mean**2 - 1e-12
        assert line[-1].tv.mean > 0.0
        assert line[-1].length.mean > strict.length.mean
        assert all(each.overshoot <= each.params.get("ceiling", 1e9) * (1 + 1e-12) for each in line)


@pytest.mark.parametrize("drafting", DRAFTINGS, ids=lambda each: each.name)
def test_drafters_differ_from_the_target_at_every_position_of_the_text(loaded, drafting):
    where = text_places(loaded, drafting, 12)
    assert len(where) == 12
    for place in where:
        q = torch.zeros_like(place.p)
        q[list(place.q.ids)] = torch.tensor(place.q.probs)
        assert float((q - place.p).abs().sum()) > 0.01


def test_a_drafter_that_sees_everything_is_the_target(loaded):
    flat, same = (text_places(loaded, each, 3) for each in (FLAT, Drafting("itself", 0, 1.0)))
    for a, b in zip(flat, same, strict=True):
        assert torch.equal(a.p, b.p)
        assert a.q.ids == b.q.ids
        assert b.q.probs[0] / b.q.probs[1] == pytest.approx(
            float(b.p[b.q.ids[0]] / b.p[b.q.ids[1]]), rel=1e-4
        )
        assert a.q.probs != b.q.probs
    assert SHORT_SIGHTED.sight < 12


def test_repetition():
    assert repetition([1, 2, 3, 1, 2, 3]) == pytest.approx(1 / 4)
    assert repetition([1, 1, 1, 1]) == pytest.approx(1 / 2)
    assert repetition([1, 2]) == 0.0


def test_answers_of_a_strict_law_are_the_same_again_and_another_law_changes_some(loaded):
    tasks = (Task("open", "one two three"),)
    strict = Contestant("strict", REJECTION)
    first, again = (answers.answer(loaded, strict, 2, 12, tasks) for _ in range(2))
    assert first == again
    assert first[0].text != first[1].text
    lossy_answers = answers.answer(loaded, Contestant("lossy", TRUNCATIONS[0]), 2, 12, tasks)
    assert [a.text for a in lossy_answers] != [a.text for a in first]
    assert all(a.logprob < 0.0 for a in first)


def _answered(contestant, kind, exact, logprob):
    return Answered(contestant, kind, "", exact, 0.25, logprob, 0.5)


def test_effects_are_paired_with_their_baseline():
    contestants = (Contestant("true", REJECTION), Contestant("lossy", TRUNCATIONS[0], baseline="true"))
    given = [
        _answered(name, kind, exact, logprob)
        for name, exact, shift in (("true", True, 0.0), ("lossy", False, -0.5))
        for kind, logprob in (("copy", -1.0), ("copy", -3.0), ("edit", -2.0), ("open", -4.0), ("open", -2.0))
        for logprob, exact in ((logprob + shift, exact),)
    ]
    true, lossy_effect = effects(given, contestants)
    assert (true.copy.mean, true.minus_copy) == (1.0, None)
    assert lossy_effect.minus_copy.mean == -1.0
    # Values differ among themselves, their differences do not.
    assert (lossy_effect.minus_logprob.low, lossy_effect.minus_logprob.high) == (-0.5, -0.5)
    assert lossy_effect.logprob.high > lossy_effect.logprob.low
    assert lossy_effect.repetition.mean == 0.25


def test_the_report_is_printed_drawn_and_written(tmp_path):
    where = places(P, Q)
    points = tuple(exact.curve("by hand", where, by_hand(20)))
    contestants = (Contestant("true", REJECTION), Contestant("lossy", TRUNCATIONS[0], baseline="true"))
    kinds = ("copy", "edit", "open")
    given = [_answered(name, kind, True, -1.0) for name in ("true", "lossy") for kind in kinds]
    report = Report(
        "tiny",
        Size(1, 1, 100, 20, 1, 8),
        Machine("a processor", 2, 2, "2", 1e9),
        1.0,
        (exact.pitfall(TRUNCATIONS[0], "by hand", where, 1, 100),),
        points,
        tuple(effects(given, contestants)),
    )
    out = StringIO()
    render(report, Console(file=out, width=250))
    assert "rejection on p_A" in out.getvalue()
    assert "minus true" in out.getvalue()
    written = json.loads(json.dumps(as_json(report)))
    assert len(written["points"]) == len(points)
    assert written["points"][0]["length"]["mean"] == points[0].length.mean
    for name in ("a.svg", "b.svg"):
        draw(points, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert all(law.partition(":")[2] in text for law in exact.CURVES)
