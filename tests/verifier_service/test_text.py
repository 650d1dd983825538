"""Text as tokens come: whole characters only, and no stop string, not even its beginning."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifier_service.text import TextStream

SETTINGS = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def run(tokenizer, ids, stop=()):
    """Everything released, piece by piece."""
    stream, pieces, tokens = TextStream(tokenizer, stop), [], []
    for token in ids:
        stopped = stream.push(token)
        text, released = stream.release(final=stopped)
        pieces.append(text)
        tokens.extend(released)
        if stopped:
            return pieces, tokens, True
    text, released = stream.release(final=True)
    return [*pieces, text], [*tokens, *released], False


@SETTINGS
@given(text=st.text(max_size=40))
def test_streamed_text_is_the_decoded_text(loaded, text):
    ids = loaded.tokenizer(text)["input_ids"]
    pieces, tokens, stopped = run(loaded.tokenizer, ids)
    assert "".join(pieces) == loaded.tokenizer.decode(ids, skip_special_tokens=True)
    assert tokens == ids
    assert not stopped


def test_a_character_of_several_tokens_comes_whole(loaded):
    ids = loaded.tokenizer("a🦜b")["input_ids"]
    pieces, _, _ = run(loaded.tokenizer, ids)
    assert len(ids) > 3
    assert "🦜" in "".join(pieces)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@SETTINGS
@given(
    text=st.text("ab ", min_size=1, max_size=30),
    stop=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3),
)
def test_no_part_of_a_stop_string_is_ever_released(loaded, text, stop):
    ids = loaded.tokenizer(text)["input_ids"]
    pieces, tokens, stopped = run(loaded.tokenizer, ids, tuple(stop))
    found = [at for each in stop if (at := text.find(each)) >= 0]
    released = "".join(pieces)
    assert stopped == bool(found)
    # The earliest stop that a token completed; a later token may complete one that begins earlier.
    assert text.startswith(released)
    assert not any(each in released for each in stop)
    if not found:
        assert released == text
    assert ids[: len(tokens)] == tokens
    assert text.startswith(loaded.tokenizer.decode(tokens))
    assert len(loaded.tokenizer.decode(tokens)) <= len(released)
