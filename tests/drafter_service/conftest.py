import threading

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import LlamaConfig, LlamaForCausalLM

from drafter_service.server import DraftingServer
from tests.drafting.helpers import VOCAB, ScriptedDrafter


@pytest.fixture(scope="session")
def llama():
    """A random model of 64 ids and 48 positions whose distributions are neither flat nor certain."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def drafter():
    return ScriptedDrafter()


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
async def server(drafter, spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    server = DraftingServer(drafter, "abc", VOCAB, "replica-1", provider.get_tracer("test"))
    await server.start()
    yield server
    drafter.gate.set()
    await server.stop()
    assert not server.healthy
    assert "drafting" not in [thread.name for thread in threading.enumerate()]
