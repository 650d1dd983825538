"""`truedraft replay`: equal for what was served, the place and the margin for what was changed."""

import json
import math

import pytest
from opentelemetry.trace import NoOpTracer
from typer.testing import CliRunner

from cluster.cli import app
from cluster.client import Answer, Ask, as_dict
from cluster.commands.replay import run, sentence
from cluster.drafting import NgramDrafter
from cluster.gateway import wire
from cluster.speculation.law import COUPLED, REJECTION
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from verifier_service.batch import answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

PROMPT = "one two three one two three one two"


@pytest.fixture(scope="module")
def served(tiny_path):
    """Answers as `generate --json` prints them, by law."""
    spec = VerifierSpec(model=str(tiny_path), threads=1)
    loaded = load_target(spec)
    engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer())

    def serve(law, temperature=0.9):
        ids = tuple(loaded.tokenizer(PROMPT)["input_ids"])
        sampling = Sampling(temperature=temperature)
        request = GenerationRequest("id", ids, sampling, law, law, 2**63 + 5, 24)
        [answer] = answer_all(engine, [request])
        final = wire.to_answer(answer.finished, wire.Labels("id", str(tiny_path)))
        whole = Answer(answer.text, answer.token_ids, final=final)
        return as_dict(whole, Ask(prompt=PROMPT, temperature=temperature, max_tokens=24, law=law.name))

    return serve


@pytest.fixture
def saved(tmp_path):
    def save(content):
        path = tmp_path / "answer.json"
        path.write_text(json.dumps(content))
        return path

    return save


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_as_it_was_served_is_equal(served, saved, temperature):
    outcome = run(saved(served(COUPLED, temperature)), None, 0)
    assert outcome["equal"]
    assert outcome["compared"] == outcome["tokens"] > 0
    assert sentence(outcome).startswith("equal: all")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_changed_token_is_found(served, saved, temperature):
    content = served(COUPLED, temperature)
    content["token_ids"][7] ^= 1
    outcome = run(saved(content), None, 0)
    difference = outcome["difference"]
    assert difference["index"] == 7
    assert difference["served"] == content["token_ids"][7]
    assert 0.0 < difference["margin"] < math.inf
    assert not difference["near_tie"]
    assert "different at token 7" in sentence(outcome)


def test_the_command_says_so_by_its_exit_code(served, saved):
    content = served(COUPLED)
    assert CliRunner().invoke(app, ["replay", str(saved(content))]).exit_code == 0
    content["token_ids"][0] ^= 1
    result = CliRunner().invoke(app, ["replay", str(saved(content)), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["difference"]["index"] == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content.pop("request"), "is not an answer as generate --json prints it"),
        (lambda content: content.update(token_ids=[]), "no tokens to compare"),
        (lambda content: content["provenance"]["numerics"].update(weights_hash="ab" * 32), "other weights"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(served, saved, change, sentence):
    content = served(COUPLED)
    change(content)
    result = CliRunner().invoke(app, ["replay", str(saved(content))])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_an_answer_that_blocks_decided_cannot_be_compared(served, saved):
    result = CliRunner().invoke(app, ["replay", str(saved(served(REJECTION)))])
    assert result.exit_code == 2
    assert "under rejection cannot be decoded again" in result.stderr
