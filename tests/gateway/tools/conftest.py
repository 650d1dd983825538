"""The tokenizer of a tiny model, one for each test, which may change its template."""

import pytest
from transformers import AutoTokenizer

from cluster.checkpoints.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=1)


@pytest.fixture
def tiny_tokenizer(tiny_path):
    return AutoTokenizer.from_pretrained(tiny_path)
