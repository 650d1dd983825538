"""A replica of two processes on a real cluster: served, and replaced when one of them stands still."""

import uuid

import psutil
import pytest
from ray import serve

from cluster.config import load_config
from cluster.speculation.law import COUPLED
from cluster.speculation.request import Committed, Failed, Finished, GenerationRequest
from cluster.speculation.sampling import Sampling
from tests.cluster.waiting import eventually
from verifier_service.deployment import VerifierDeployment

pytestmark = pytest.mark.cluster


@pytest.fixture
def shared(cluster):
    """A verifier of the cluster's model, over two processes."""
    config = load_config(
        None,
        [
            f"model={cluster.running.config.model}",
            "emulation.enabled=true",
            "drafter.mode=off",
            "verifier.threads=1",
            "verifier.tensor_parallel_size=2",
            "verifier.rank_timeout_s=5",
            # The node's one GPU is taken.
            "verifier.placement.num_gpus=0",
            "verifier.placement.num_cpus=0.5",
        ],
    )
    name = f"shared-{uuid.uuid4().hex[:8]}"
    deployment = VerifierDeployment.options(
        **config.verifier.placed(), health_check_period_s=0.5, max_ongoing_requests=8
    )
    yield serve.run(deployment.bind(config.verifier_spec(), None), name=name, route_prefix=None)
    serve.delete(name)


def events_of(handle, prompt_ids):
    request = GenerationRequest(
        request_id=uuid.uuid4().hex,
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(temperature=1.0),
        law=COUPLED,
        requested_law=COUPLED,
        seed=5,
        max_tokens=20,
    )
    messages = handle.options(stream=True).generate.remote(request)
    return [event for together in messages for event in together]


def answered(handle, prompt_ids):
    events = events_of(handle, prompt_ids)
    assert isinstance(events[-1], Finished)
    tokens = [token for event in events if isinstance(event, Committed) for token in event.token_ids]
    return tokens, events[-1].provenance


def test_two_processes_serve_what_one_serves_and_are_replaced_together(cluster, shared):
    prompt = [7, 11, 13, 17]
    single = serve.get_deployment_handle("VerifierDeployment", "truedraft")
    expected, _ = answered(single, prompt)
    tokens, provenance = answered(shared, prompt)
    assert tokens == expected
    assert provenance.numerics.kernels.endswith("/2-ranks")
    assert provenance.numerics.row_invariant

    def ranks():
        every = psutil.process_iter(["cmdline"])
        return [each for each in every if "ray::Rank" in "".join(each.info["cmdline"] or ())]

    first = shared.info.remote().result(timeout_s=30)
    assert first["tensor_parallel_size"] == 2
    [lost] = ranks()
    lost.suspend()
    # It is missed by the first request that needs it.
    message = "a process that holds a share of the target does not answer"
    assert events_of(shared, prompt)[-1] == Failed(message, leaving=True)

    def another():
        try:
            return shared.info.remote().result(timeout_s=5)["replica"] != first["replica"]
        except Exception:
            return False

    eventually(another, 90)
    assert answered(shared, prompt)[0] == expected
    # The one that stood still is gone as well.
    assert lost not in ranks()
    assert len(ranks()) == 1
