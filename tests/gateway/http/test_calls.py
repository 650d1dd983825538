"""Calls of tools in answers over HTTP, whole and streamed."""

from cluster.speculation.request import Committed
from tests.gateway.helpers import FINISHED
from tests.gateway.http.front import CHAT, TOOL

CALLED = (
    Committed('Yes.\n<tool_call>\n{"name": "f", "argu', (1,)),
    Committed('ments": {"a": [', (2,)),
    Committed("1]}}\n</tool_call>", (3,)),
    FINISHED,
)
PIECES = [
    {
        "index": 0,
        "id": "call_ID_0",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    },
    {"index": 0, "function": {"arguments": '{"a": ['}},
    {"index": 0, "function": {"arguments": "1]}"}},
]


async def test_calls_are_apart_from_text(front):
    run = front(*CALLED)
    content = (await run.post("chat/completions", CHAT | {"tools": [TOOL]})).json()
    [choice] = content["choices"]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes.\n",
        "refusal": None,
        "tool_calls": [{"id": f"call_{run.sent[0].request_id}_0"} | call],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert choice["truedraft"]["token_ids"] == [1, 2, 3]
    assert bytes(run.sent[0].prompt_ids).startswith(b"<f><user>")


async def test_calls_are_streamed_in_pieces(front):
    run = front(*CALLED)
    _, chunks = await run.chunks("chat/completions", CHAT | {"tools": [TOOL]})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "Yes.\n"}
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    pieces[0]["id"] = pieces[0]["id"].replace(run.sent[0].request_id, "ID")
    assert pieces == PIECES
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    tokens = [token for chunk in chunks[1:-1] for token in chunk["truedraft"]["token_ids"]]
    assert tokens == [1, 2, 3]


async def test_an_answer_with_calls_may_be_sent_back(front):
    run = front(*CALLED)
    message = (await run.post("chat/completions", CHAT | {"tools": [TOOL]})).json()["choices"][0]["message"]
    gave = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "5"}
    body = {"messages": [*CHAT["messages"], message, gave], "tools": [TOOL]}
    assert (await run.post("chat/completions", body)).status_code == 200
    assert bytes(run.sent[1].prompt_ids).endswith(b"<assistant>Yes.\n<tool>5")


async def test_the_same_text_without_tools_is_text(front):
    run = front(*CALLED)
    content = (await run.post("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "none"})).json()
    message = content["choices"][0]["message"]
    assert "tool_calls" not in message
    assert message["content"].endswith("</tool_call>")
    assert bytes(run.sent[0].prompt_ids).startswith(b"<user>")
    assert run.sent[0].grammar == ""
