"""Controls against transformers' own processors and against the plain definition, row by row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from cluster.speculation.controls import Controller, Controls
from cluster.speculation.messages import DraftBlock

VOCAB = 12
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=6)
controls = st.builds(
    Controls,
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=3).map(lambda d: tuple(d.items())),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 2.0, -0.7]),
    presence_penalty=st.sampled_from([0.0, 1.1, -2.0]),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 6),
)


def logits(rows):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))


def controller(given, prompt, output, ends=(3,)):
    made = Controller(given, prompt, ends)
    for token in output:
        made.emit(token)
    return made


def by_the_book(row, given, prompt, output, ends):
    """One row, one token at a time."""
    row, text = row.clone(), [*prompt, *output]
    for token in range(VOCAB):
        value = row[token] + torch.tensor(dict(given.logit_bias).get(token, 0.0))
        if token in text:
            value = value / given.repetition_penalty if value > 0 else value * given.repetition_penalty
        count = output.count(token)
        value = value - (
            given.frequency_penalty * torch.tensor(float(count)) + given.presence_penalty * (count > 0)
        )
        for *head, last in given.bad_words:
            if token == last and (not head or text[-len(head) :] == head):
                value = torch.tensor(-math.inf)
        if len(output) < given.min_tokens and token in ends:
            value = torch.tensor(-math.inf)
        row[token] = value
    return row


@given(controls, texts, texts, texts)
def test_each_row_sees_the_tokens_before_it(given, prompt, output, drafts):
    rows = logits(len(drafts) + 1)
    got = controller(given, prompt, output).apply(rows, DraftBlock(tuple(drafts)))
    for k in range(len(drafts) + 1):
        expected = by_the_book(rows[k], given, prompt, [*output, *drafts[:k]], (3,))
        assert torch.allclose(got[k], expected, atol=1e-5)


@given(controls, texts, texts, texts)
def test_a_row_in_a_block_is_the_row_alone_bit_for_bit(given, prompt, output, drafts):
    rows = logits(len(drafts) + 1)
    got = controller(given, prompt, output).apply(rows, DraftBlock(tuple(drafts)))
    for k in range(len(drafts) + 1):
        alone = controller(given, prompt, [*output, *drafts[:k]]).apply(rows[k : k + 1], DraftBlock())
        assert torch.equal(got[k], alone[0])


def test_a_branch_sees_its_own_ancestors():
    given, rows = Controls(frequency_penalty=1.0), torch.zeros(5, VOCAB)
    block = DraftBlock((1, 2, 1, 5), (1.0,) * 4, parents=(-1, -1, 0, 1))
    got = controller(given, [], []).apply(rows, block)
    counted = [{token: -row[token].item() for token in row.nonzero()[:, 0].tolist()} for row in got]
    assert counted == [{}, {1: 1}, {2: 1}, {1: 2}, {2: 1, 5: 1}]


def test_as_transformers_does():
    prompt, output = [1, 2, 3, 1], [4, 2]
    given = Controls(
        logit_bias=((5, 1.5), (2, -3.0)), repetition_penalty=1.4, bad_words=((4, 2, 7), (9,)), min_tokens=3
    )
    row = logits(1)
    expected = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[5], 1.5], [[2], -3.0]]),
            RepetitionPenaltyLogitsProcessor(1.4),
            NoBadWordsLogitsProcessor([[4, 2, 7], [9]], eos_token_id=3),
            MinNewTokensLengthLogitsProcessor(len(prompt), 3, 3),
        ]
    )(torch.tensor([[*prompt, *output]]), row.clone())
    assert torch.allclose(controller(given, prompt, output).apply(row, DraftBlock()), expected)


def test_the_defaults_hand_the_very_rows_back():
    rows = logits(2)
    assert controller(Controls(), [1], [2]).apply(rows, DraftBlock((1,))) is rows


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": ((1, 101.0),)}, "logit_bias must lie between -100 and 100, got 101 for token 1"),
        ({"logit_bias": ((1, math.nan),)}, "got nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": math.inf}, "got inf"),
        ({"frequency_penalty": 2.1}, "frequency_penalty must lie between -2 and 2"),
        ({"presence_penalty": math.nan}, "presence_penalty must lie"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
    ],
)
def test_out_of_range(fields, words):
    with pytest.raises(ValueError, match=words):
        Controls(**fields)
