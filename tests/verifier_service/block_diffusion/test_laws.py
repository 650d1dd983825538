"""Strict laws keep the target's distribution under drafts of block diffusion."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.speculation.law import BLOCK, REJECTION, Claim
from cluster.speculation.messages import SparseRows
from cluster.speculation.sampling import Sampling
from tests.speculation.helpers import ALPHA, p_value
from tests.verifier_service.block_diffusion.served import (
    Recording,
)
from tests.verifier_service.helpers import Rows, accounted
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting

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
