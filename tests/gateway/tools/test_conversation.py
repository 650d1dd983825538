"""How a model is told of functions and of what they gave: by its template, or in words."""

import json

import pytest

from cluster.checkpoints.tiny import CHAT_TEMPLATE
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.tools.conversation import Call, Turn
from cluster.gateway.tools.offer import Function
from cluster.gateway.tools.wording import written

FUNCTION = Function("weather", "Tells the weather.", {"type": "object", "properties": {}})
TURNS = [
    Turn("user", "Is it hot?"),
    Turn("assistant", "", (Call("c1", "weather", {"city": "Málaga"}),)),
    Turn("tool", "yes", answers="c1"),
]
# In the manner of Qwen's.
KNOWING = (
    "{% if tools %}{{ 'T:' + (tools | tojson) }}{% endif %}"
    "{% for m in messages %}{{ m.role + ':' + m.content }}"
    "{% for c in m.tool_calls %}{% set f = c.function %}"
    "{{ '<tool_call>' + f.name + (f.arguments | tojson) }}{% endfor %}"
    "{% if m.tool_call_id %}{{ m.tool_call_id }}{% endif %}|{% endfor %}"
)
# Of another form of calls.
OTHER = "{% if tools %}PYTHON{% endif %}" + CHAT_TEMPLATE


@pytest.fixture
def prompted(tiny_tokenizer):
    def prompt(template, turns, functions=()):
        tiny_tokenizer.chat_template = template
        ids = TokenizerPrompting(tiny_tokenizer, 512, 512).encode_chat(turns, functions)
        return tiny_tokenizer.decode(ids)

    return prompt


def test_a_template_that_knows_calls_writes_them_itself(prompted):
    text = prompted(KNOWING, TURNS, [FUNCTION])
    told, rest = text.removeprefix("T:").split("user:")
    assert json.loads(told) == [FUNCTION.described()]
    assert rest == 'Is it hot?|assistant:<tool_call>weather{"city": "Málaga"}|tool:yesc1|'
    assert "T:" not in prompted(KNOWING, TURNS)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, OTHER])
def test_others_are_told_in_words(prompted, template):
    text = prompted(template, TURNS, [FUNCTION])
    system, user, assistant, tool, _ = text.split("<|im_start|>")[1:]
    assert system.startswith("system\n")
    assert json.dumps(FUNCTION.described()["function"]) in system
    assert "<tool_call>" in system
    assert user == "user\nIs it hot?<|im_end|>\n"
    assert assistant == f"assistant\n{written('weather', {'city': 'Málaga'})}<|im_end|>\n"
    assert tool == "user\n<tool_response>\nyes\n</tool_response><|im_end|>\n"
    assert "PYTHON" not in text


def test_what_the_system_says_stays(prompted):
    text = prompted(CHAT_TEMPLATE, [Turn("system", "Be brief."), *TURNS], [FUNCTION])
    assert text.count("system\n") == 1
    assert "Be brief.\n\nYou may call" in text


def test_without_functions_nothing_is_told(prompted):
    turns = [Turn("user", "hi"), Turn("assistant", ""), Turn("user", "x")]
    assert prompted(CHAT_TEMPLATE, turns) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )
