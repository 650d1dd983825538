"""What the demo starts, and which of its answers it explains; that it runs is for `make demo`."""

from cluster.commands.demo import SETTINGS, _telling
from cluster.config import load_config
from cluster.drafting.drafter_checkpoints import SHIPPED
from drafter_service.spec import DrafterKind
from verifier_service.spec import DraftingMode


def test_the_shipped_drafter_drafts_beside_ngrams():
    config = load_config(None, list(SETTINGS))
    assert (config.drafter.mode, config.drafter.kind) == (DraftingMode.BOTH, DrafterKind.DFLASH)
    assert config.drafter.model == SHIPPED


def test_the_trace_is_one_with_the_shipped_drafters_work():
    ngram, shipped = {"kind": "ngram", "model": "ngram"}, {"kind": "dflash2", "model": SHIPPED}
    given = [
        {"trace_id": "a", "accepted_tokens": 9, "drafters": [ngram]},
        {"trace_id": "b", "accepted_tokens": 2, "drafters": [ngram, shipped]},
        {"trace_id": "c", "accepted_tokens": 4, "drafters": [shipped]},
        {"trace_id": "d", "accepted_tokens": 3, "drafters": [shipped]},
    ]
    assert _telling(given)["trace_id"] == "c"
    assert _telling(given[:1])["trace_id"] == "a"
