"""A tiny target, loaded once, and engines over it."""

import gc
from dataclasses import replace

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.checkpoints import load_model, resolve
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Rows
from verifier_service.build import build_engine, load_target
from verifier_service.spec import VerifierSpec


@pytest.fixture(scope="session")
def spec(tiny_path):
    # A fixed length, so that tests know what is drafted.
    return VerifierSpec(model=str(tiny_path), threads=1, draft_deadline_s=30.0, planner=PlannerName.FIXED)


@pytest.fixture(scope="session")
def loaded(spec):
    return load_target(spec)


@pytest.fixture(autouse=True, scope="module")
def _collected():
    """What a test leaves in cycles, such as a traceback, may hold an engine, and Python's collector counts
    objects and not the bytes of its cache: left to itself, it lets gigabytes of them pile up."""
    yield
    gc.collect()


@pytest.fixture
def engine_with(loaded, spec):
    """Makes an engine from a drafting port and fields of VerifierSpec; planned_by: another planner."""

    def make(drafting=None, planned_by=None, **fields):
        return build_engine(loaded, replace(spec, **fields), drafting, NoOpTracer(), planner=planned_by)

    return make


@pytest.fixture
def request_for(loaded):
    """Makes a request from a text and fields of GenerationRequest."""

    def make(text="one two three one two three one two", temperature=0.0, law=COUPLED, **fields):
        ids = tuple(loaded.tokenizer(text)["input_ids"])
        request = GenerationRequest(
            request_id=f"{text}/{temperature}/{law}",
            prompt_ids=ids,
            sampling=Sampling(temperature=temperature),
            law=law,
            requested_law=law,
            seed=11,
            max_tokens=40,
        )
        return replace(request, **fields)

    return make


@pytest.fixture(scope="session")
def rows(tiny_path):
    """The target's distributions by transformers, at temperature 1 on the three most probable tokens."""
    return Rows(load_model(resolve(str(tiny_path)), "float32", "cpu"), Sampling(temperature=1.0, top_k=3))
