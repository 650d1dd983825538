"""What `helm test` runs: one generation, whose provenance must add up. Arguments: endpoint, prompt, law."""

import os
import sys

from cluster.client import Ask, Client, RequestFailedError, provenance_block


def main(endpoint: str, prompt: str, law: str) -> str:
    """Why the generation is not as it should be; empty if it is."""
    try:
        with Client(endpoint, timeout=120.0, api_key=os.environ.get("TRUEDRAFT_API_KEY", "")) as client:
            answer = client.answer(Ask(prompt=prompt, max_tokens=32, temperature=0.0))
    except RequestFailedError as error:
        return f"{error.code}: {error}"
    if answer.final is None:
        return "the stream ended without an answer"
    print(answer.text)
    print(provenance_block(answer.final))
    provenance = answer.final.provenance
    emitted = provenance.accepted_tokens + provenance.correction_tokens + provenance.bonus_tokens
    if emitted != len(answer.token_ids) or not emitted:
        return f"{emitted} tokens are accounted for, {len(answer.token_ids)} came"
    if provenance.effective_law != law:
        return f"the law is {provenance.effective_law}, not {law}"
    if not provenance.lossless:
        return f"the answer claims no more than {provenance.claim}"
    if provenance.fallbacks.get("no-drafter"):
        return "no drafter was in use"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or 0)
