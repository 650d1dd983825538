"""Text as tokens come: whole characters only, and no stop string, not even its beginning."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifier_service.requests.text import TextStream

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
            return [*pieces, stream.remainder()], tokens, True
    stopped = stream.finish()
    text, released = stream.release(final=True)
    return [*pieces, text, stream.remainder()], [*tokens, *released], stopped


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


def split_ids(tokenizer, text, cuts):
    """Tokens of the pieces of a text, so that the same text comes in many splits."""
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [token for a, b in itertools.pairwise(edges) for token in tokenizer(text[a:b])["input_ids"]]


def expected(tokenizer, ids, stop):
    """By the book: decode all after each token; cut where the first stop string that is complete begins."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        # An unfinished character is no text yet.
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")
        found = [at for each in stop if (at := text.find(each)) >= 0]
        if found:
            return text[: min(found)], True
    return tokenizer.decode(ids), False


@SETTINGS
@given(
    text=st.text("abé🦜世\n", min_size=1, max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=10),
    stop=st.lists(st.text("abé🦜世\n", min_size=1, max_size=5), max_size=3, unique=True),
)
def test_text_ends_where_the_first_stop_string_begins_however_it_is_split(loaded, text, cuts, stop):
    ids = split_ids(loaded.tokenizer, text, cuts)
    pieces, tokens, stopped = run(loaded.tokenizer, ids, tuple(stop))
    wanted, ends = expected(loaded.tokenizer, ids, stop)
    assert ("".join(pieces), stopped) == (wanted, ends)
    # The tokens are the longest beginning whose text lies wholly before the cut.
    assert tokens == ids[: len(tokens)]
    assert wanted.startswith(loaded.tokenizer.decode(tokens))
    if not ends:
        assert tokens == ids
    for count in range(len(tokens) + 1, len(ids) + 1):
        longer = loaded.tokenizer.decode(ids[:count])
        assert not (ends and wanted.startswith(longer) and len(longer) > len(loaded.tokenizer.decode(tokens)))


@SETTINGS
@given(text=st.text("ab🦜", min_size=1, max_size=20), stop=st.text("ab🦜", min_size=1, max_size=5))
def test_what_was_released_is_never_taken_back_and_nothing_is_held_without_need(loaded, text, stop):
    stream = TextStream(loaded.tokenizer, (stop,))
    released = ""
    for token in loaded.tokenizer(text)["input_ids"]:
        if stream.push(token):
            break
        released += stream.release()[0]
        seen = stream._text
        held = seen[len(released) :]
        assert seen.startswith(released)
        # Held back: exactly the longest end of the text that may become the stop string.
        assert held == "" or stop.startswith(held)
        longer = [seen[at:] for at in range(len(released)) if stop.startswith(seen[at:])]
        assert longer == []
    if not stream.stopped:
        stream.finish()
    final = released + stream.release(final=True)[0] + stream.remainder()
    assert final == text.split(stop)[0]


def test_a_stop_string_across_tokens_is_cut_with_every_token_that_has_part_in_it(loaded):
    tokenizer = loaded.tokenizer
    ids = [token for piece in ("go ", "on", "ST", "OP", "more") for token in tokenizer(piece)["input_ids"]]
    kept = [token for piece in ("go ", "on") for token in tokenizer(piece)["input_ids"]]
    pieces, tokens, stopped = run(tokenizer, ids, ("STOP",))
    assert ("".join(pieces), tokens, stopped) == ("go on", kept, True)


def test_a_stop_string_in_the_middle_of_a_token_keeps_the_text_before_it_and_drops_the_token(loaded):
    tokenizer = loaded.tokenizer
    [token] = [i for i in range(len(tokenizer)) if tokenizer.decode([i]) == " the"]
    head = tokenizer("in")["input_ids"]
    pieces, tokens, stopped = run(tokenizer, [*head, token], ("h",))
    assert ("".join(pieces), tokens, stopped) == ("in t", head, True)
    # Apart, since whoever resumes from the tokens gets it again.
    assert ("".join(pieces[:-1]), pieces[-1]) == ("in", " t")


def test_of_several_stop_strings_in_one_token_the_earliest_counts(loaded):
    tokenizer = loaded.tokenizer
    [token] = [i for i in range(len(tokenizer)) if tokenizer.decode([i]) == " the"]
    pieces, _, stopped = run(tokenizer, [token], ("he", "t", "e"))
    assert ("".join(pieces), stopped) == (" ", True)


def test_an_answer_that_ends_inside_a_character_says_so(loaded):
    ids = loaded.tokenizer("ok🦜")["input_ids"][:-1]
    pieces, tokens, stopped = run(loaded.tokenizer, ids)
    assert "".join(pieces) == loaded.tokenizer.decode(ids)
    assert "".join(pieces).startswith("ok\N{REPLACEMENT CHARACTER}")
    assert (tokens, stopped) == (ids, False)
    # Where that is a stop string, it is one.
    pieces, tokens, stopped = run(loaded.tokenizer, ids, ("\N{REPLACEMENT CHARACTER}",))
    assert ("".join(pieces), tokens, stopped) == ("ok", loaded.tokenizer("ok")["input_ids"], True)


@SETTINGS
@given(ids=st.lists(st.integers(0, 511), max_size=30))
def test_any_tokens_at_all_stream_to_their_decoded_text(loaded, ids):
    """A random model writes broken characters and special tokens too."""
    pieces, tokens, stopped = run(loaded.tokenizer, ids)
    assert "".join(pieces) == loaded.tokenizer.decode(ids, skip_special_tokens=True)
    assert (tokens, stopped) == (ids, False)
