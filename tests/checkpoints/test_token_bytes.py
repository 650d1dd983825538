"""Tokens in bytes: together they are the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cluster.checkpoints import load_tokenizer, resolve
from cluster.checkpoints.tiny import IM_END
from cluster.checkpoints.token_bytes import TokenBytes


@pytest.fixture(scope="module")
def tokenizer(tiny_path):
    return load_tokenizer(resolve(str(tiny_path)))


@given(text=st.text(max_size=20))
def test_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer, text):
    of = TokenBytes(tokenizer).of
    assert b"".join(of(token) for token in tokenizer(text)["input_ids"]) == text.encode()


def test_special_tokens_are_what_they_are_called_and_unknown_ones_nothing(tokenizer):
    of = TokenBytes(tokenizer).of
    assert of(tokenizer.convert_tokens_to_ids(IM_END)) == IM_END.encode()
    assert of(10**6) == b""


def test_vocabularies_with_spaces_and_byte_tokens():
    vocabulary = {"▁the": 0, "ri": 1, "<0xF0>": 2, "<0x9F>": 3}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    of = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=backend)).of
    assert [of(token) for token in range(4)] == [b" the", b"ri", b"\xf0", b"\x9f"]
