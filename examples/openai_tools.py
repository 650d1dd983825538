"""The openai client against truedraft: a function that the model calls, and what it makes of the result.

Set OPENAI_BASE_URL=http://127.0.0.1:8000/v1 and OPENAI_API_KEY.
"""

import json

import openai

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}

client = openai.OpenAI()
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "How warm is it in Paris?"}]
tools = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "How warm it is.", "parameters": WEATHER},
    }
]
asked = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=tools,
    # Or "auto", with which the model may as well answer in words.
    tool_choice={"type": "function", "function": {"name": "weather"}},
    max_tokens=100,
    seed=7,
)
message = asked.choices[0].message
[call] = message.tool_calls
arguments = json.loads(call.function.arguments)
print(f"{asked.choices[0].finish_reason}: {call.function.name} of {sorted(arguments)}")

messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, seed=7)
print(answer.choices[0].message.content)
print(f"law {answer.truedraft['effective_law']}, claim {answer.truedraft['claim']}")
