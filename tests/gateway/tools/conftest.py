"""The tokenizer of a tiny model, one for each test, which may change its template."""

import pytest
from transformers import AutoTokenizer


@pytest.fixture
def tiny_tokenizer(tiny_path):
    return AutoTokenizer.from_pretrained(tiny_path)
