"""Calls read out of an answer, however it is cut into pieces."""

import json

import pytest

from cluster.calls import add_pieces
from cluster.gateway.tools.reader import CallReader
from cluster.gateway.tools.wording import written

ARGUMENTS = [{"city": "Paris"}, {}, {"a": {"b": [1, "}}"]}, "c": "<tool_call>é\n"}]
TEXT = "Let me see <tool_ if I can: }\n"


def answer(arguments, text=TEXT):
    return text + "\n".join(written(f"f{index}", each) for index, each in enumerate(arguments))


def read(pieces, seen=""):
    reader, text, calls, heard = CallReader("id", seen), "", [], []
    for said, made in [*map(reader.read, pieces), reader.end()]:
        text += said
        heard += made
        add_pieces(calls, made)
    return reader, text, calls, heard


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("text", ["", TEXT])
def test_text_and_calls_are_parted_whatever_the_pieces(size, count, text):
    whole = answer(ARGUMENTS[:count], text)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    reader, said, calls, heard = read(pieces)
    assert said == text
    assert [json.loads(call.arguments) for call in calls] == ARGUMENTS[:count]
    assert [call.name for call in calls] == [f"f{index}" for index in range(count)]
    assert len({call.id for call in calls}) == count
    # The first piece of a call names it, the others do not.
    assert sum(bool(piece.name) for piece in heard) == sum(bool(piece.id) for piece in heard) == count
    assert reader.called == (count > 0)


def test_nothing_that_a_call_may_begin_with_is_said_and_nothing_else_is_held():
    reader = CallReader("id")
    assert reader.read("a <tool") == ("a ", [])
    assert reader.read("s") == ("<tools", [])
    assert reader.read(" b<")[0] == " b"
    assert reader.end() == ("<", [])


def test_arguments_come_as_soon_as_they_are_known():
    reader = CallReader("id")
    _, [call] = reader.read('<tool_call>\n{"name": "f", "arguments": ')
    assert (call.name, call.arguments) == ("f", "")
    assert [piece.arguments for piece in reader.read('{"city": "Pa')[1]] == ['{"city": "Pa']
    assert [piece.arguments for piece in reader.read('ris"}')[1]] == ['ris"']
    assert [piece.arguments for piece in reader.read("}")[1]] == ["}"]
    assert reader.read("\n</tool_call>") == ("", [])
    assert reader.called


@pytest.mark.parametrize("cut", range(1, len(answer(ARGUMENTS[:1], "")) + 1))
def test_an_answer_that_is_cut_short_gives_the_beginning_of_its_call(cut):
    whole = answer(ARGUMENTS[:1], "")
    reader, text, calls, _ = read(list(whole[:cut]))
    expected = json.dumps(ARGUMENTS[0])
    if calls:
        assert expected.startswith(calls[0].arguments)
        begun = whole.index(expected)
        assert calls[0].arguments == whole[begun:cut][: len(expected)]
        assert text == ""
    assert reader.called == (cut == len(whole))


@pytest.mark.parametrize("cut", range(len(answer(ARGUMENTS[:2]))))
def test_an_answer_that_is_resumed_anywhere_goes_on_where_it_was(cut):
    whole = answer(ARGUMENTS[:2])
    first = CallReader("one")
    text, calls = first.read(whole[:cut])
    _, rest, later, _ = read([whole[cut:]], seen=whole[:cut])
    assembled = []
    add_pieces(assembled, calls)
    add_pieces(assembled, later)
    assert text + rest == TEXT
    assert [json.loads(call.arguments) for call in assembled] == ARGUMENTS[:2]
