"""The drafter that is shipped for the default model."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.bench.domains.prompts import DOMAINS
from cluster.bench.domains.run import Asking
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.drafting.block_diffusion import read_config, read_tensors
from cluster.drafting.drafter_checkpoints import SHIPPED, resolve_drafter
from cluster.scheduling import PlannerName
from cluster.speculation.law import NONE
from drafter_service.deployment import load
from drafter_service.spec import DrafterSpec
from verifier_service.batch import answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

ASKED = [("coding", 0, 0.0), ("chat", 1, 0.7), ("editing", 3, 1.0)]


def test_the_card_is_about_these_weights():
    folder = Path(resolve_drafter(SHIPPED).path)
    weights = folder / "model.safetensors"
    assert weights.stat().st_size <= 32 * 2**20
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in (folder / "README.md").read_text()
    draftable = len(read_tensors(folder, ("draft_ids",))["draft_ids"])
    card = (folder / "README.md").read_text()
    assert f"{draftable:,} tokens" in card
    assert f"{read_config(folder).block_size - 1} drafts" in card


@pytest.mark.model
@pytest.mark.timeout(600)
def test_it_drafts_for_the_default_model_and_changes_no_token():
    spec = VerifierSpec(DEFAULT_REFERENCE, drafter=SHIPPED, planner=PlannerName.FIXED, block_length=4)
    loaded = load_target(spec)
    drafter = load(DrafterSpec(DEFAULT_REFERENCE, kind="dflash", model=SHIPPED)).drafter
    asking = Asking(loaded, 32)
    drafted = [
        asking.request([("user", DOMAINS[domain][number])], domain, temperature, number)
        for domain, number, temperature in ASKED
    ]
    plain = [replace(request, law=NONE, requested_law=NONE) for request in drafted]
    speculated = answer_all(build_engine(loaded, spec, LocalDrafting(drafter), NoOpTracer()), drafted)
    alone = answer_all(build_engine(loaded, spec, None, NoOpTracer()), plain)
    assert [each.token_ids for each in speculated] == [each.token_ids for each in alone]
    rounds = sum(each.finished.provenance.rounds for each in speculated)
    assert rounds < sum(len(each.token_ids) for each in speculated)
