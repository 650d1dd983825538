"""The openai client against truedraft: a streamed chat, and the law that the answer was sampled under.

Set OPENAI_BASE_URL=http://127.0.0.1:8000/v1 and OPENAI_API_KEY.
"""

import openai

client = openai.OpenAI()
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Name three rivers."}],
    max_tokens=32,
    temperature=0.8,
    seed=7,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"truedraft": {"law": "coupled", "domain": "example"}},
)
provenance, usage = {}, None
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
        if choice.finish_reason:
            provenance = chunk.truedraft
    usage = chunk.usage or usage

print()
print(f"law {provenance['effective_law']}, claim {provenance['claim']}, lossless {provenance['lossless']}")
print(f"{provenance['rounds']} rounds, {usage.completion_tokens} tokens, trace {provenance['trace_id']}")
