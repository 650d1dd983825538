"""One target, and each drafter made for it once."""

import json
from dataclasses import replace

import pytest

from cluster.bench.rig import Loop
from cluster.speculation.law import COUPLED
from tests.drafter_service.dflash.checkpoints import build_drafter
from tests.verifier_service.block_diffusion.served import TEXTS, WARM, Made, few_words
from verifier_service.build import load_target


@pytest.fixture(scope="package")
def target(tmp_path_factory):
    return few_words(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="package")
def speaking(target, spec):
    """The target, loaded and checked once."""
    return load_target(replace(spec, model=str(target)))


@pytest.fixture(scope="package")
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
