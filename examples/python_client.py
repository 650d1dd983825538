"""truedraft's own client: a streamed answer that is resumed if its verifier is lost, and its provenance.

Set TRUEDRAFT_ENDPOINT, by default 127.0.0.1:9000.
"""

import os

from cluster.client import Answer, Ask, Client, provenance_block, take

ask = Ask(messages=[("user", "Name three rivers.")], max_tokens=32, temperature=0.8, seed=7)
answer = Answer()
with Client(os.environ.get("TRUEDRAFT_ENDPOINT", "127.0.0.1:9000"), timeout=120, retries=5) as client:
    for response in client.stream(ask):
        take(answer, response)
        print(response.delta.text, end="", flush=True)

print()
print(provenance_block(answer.final))
