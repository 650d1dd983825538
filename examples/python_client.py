"""truedraft's own client: a streamed answer that is resumed if its verifier is lost, and its provenance.

Set TRUEDRAFT_ENDPOINT, by default 127.0.0.1:9000, and TRUEDRAFT_API_KEY where keys are asked for.
"""

import os

from cluster.client import Answer, Ask, Client, provenance_block, take

ask = Ask(messages=[("user", "Name three rivers.")], max_tokens=32, temperature=0.8, seed=7)
answer = Answer()
endpoint = os.environ.get("TRUEDRAFT_ENDPOINT", "127.0.0.1:9000")
key = os.environ.get("TRUEDRAFT_API_KEY", "")
with Client(endpoint, timeout=120, retries=5, api_key=key) as client:
    for response in client.stream(ask):
        take(answer, response)
        print(response.delta.text, end="", flush=True)

print()
print(provenance_block(answer.final))
