"""Tasks for whole answers: sentences to copy and to edit, which have one right answer, and open questions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """expected: the only right answer, one line that ends the answer; empty for an open task. The prompt of
    an open task goes through the chat template, the others' examples are continued as they stand."""

    kind: str
    prompt: str
    expected: str = ""


# A model of 135 million parameters copies and edits by example, not by instruction.
_COPIED = "".join(
    f"Text: {text}\nCopy: {text}\n\n"
    for text in ("The sun is hot today.", "She likes green tea.", "He lost his key at school.")
)
_EDITED = "".join(
    f"{change}\n\n"
    for change in (
        "[hot -> cold] The sun is hot.\nThe sun is cold.",
        "[tea -> milk] She likes tea.\nShe likes milk.",
        "[key -> hat] He lost his key.\nHe lost his hat.",
        "[train -> bus] The train was late.\nThe bus was late.",
    )
)
_SENTENCES = (
    "The cat sat on the warm stone.",
    "We bought seven apples at the market.",
    "The old bridge was closed in May.",
    "Her brother plays the violin every evening.",
    "Two birds built a nest under the roof.",
    "The baker opens his shop before sunrise.",
    "My sister painted the kitchen door blue.",
    "Rain fell on the harbour all night.",
)
_CHANGES = (
    ("The cat is here.", "cat", "dog"),
    ("We bought apples.", "apples", "pears"),
    ("The bridge is closed.", "bridge", "road"),
    ("He plays the violin.", "violin", "piano"),
    ("The birds are loud.", "birds", "children"),
    ("The baker is tired.", "baker", "teacher"),
    ("My door is blue.", "blue", "green"),
    ("It rained in the night.", "night", "morning"),
)
TASKS = (
    *(Task("copy", f"{_COPIED}Text: {text}\nCopy:", text) for text in _SENTENCES),
    *(
        Task("edit", f"{_EDITED}[{old} -> {new}] {text}\n", text.replace(old, new))
        for text, old, new in _CHANGES
    ),
    *(
        Task("open", prompt)
        for prompt in (
            "Tell a short story about a clockmaker who finds a letter inside an old clock.",
            "Explain in three sentences why the sky is blue.",
            "What should I pack for a week of hiking in the mountains in October?",
            "Describe a rainy morning in a small harbour town.",
        )
    ),
)
