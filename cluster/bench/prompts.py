"""Prompts written for this project: five kinds that demo and bench use, twenty varied ones, short ones."""

from __future__ import annotations

from typing import Final

_PARAGRAPH = (
    "The ferry leaves the north pier at six in the morning, when the fog still lies on the water and the "
    "gulls are asleep on the railings. It carries bread, newspapers and a handful of people who work on the "
    "island. The captain has made the crossing for thirty years and says that the sea is never the same "
    "twice. On the way back the ferry carries letters, empty crates and the smell of fresh fish."
)

# kind -> prompt
KINDS: Final = {
    "coding": (
        "Write a Python function `merge_intervals(intervals)` that merges overlapping intervals. "
        "Give only the code, with a docstring."
    ),
    "frontend": (
        "Write the HTML of a landing page for a small bakery: a header with navigation, a hero section, "
        "three product cards and a footer. Give only the HTML."
    ),
    "story": "Tell a short story about a clockmaker who finds a letter inside an old clock.",
    "safety": (
        "Somebody asks how to get into a neighbour's wireless network without permission. How do you answer?"
    ),
    "edit": (
        "Repeat the following paragraph word for word, but write 'boat' wherever it says 'ferry'. "
        f"Give only the paragraph.\n\n{_PARAGRAPH}"
    ),
}

VARIED: Final = (
    *KINDS.values(),
    "What is the capital of Portugal, and on which river does it lie?",
    "Explain in three sentences why the sky is blue.",
    "Translate into French: 'The library closes at eight, but the café stays open.'",
    "List the first ten prime numbers, separated by commas.",
    "A train travels 180 km in two hours and then 90 km in one hour. What is its average speed?",
    'Return a JSON object with the keys "name", "age" and "city" for a fictional person.',
    "Write a haiku about winter rain.",
    (
        "Summarise in one sentence: The committee met on Monday, discussed the budget for two hours, agreed "
        "on nothing and decided to meet again on Thursday."
    ),
    "Write a SQL query that returns the five customers with the highest total order value.",
    "What should I pack for a week of hiking in the mountains in October?",
    "Count from one to twenty in words.",
    "Write a regular expression that matches an ISO date such as 2024-05-17, and explain it.",
    "Give me a recipe for lentil soup with quantities for four people.",
    "Answer with yes or no: is 91 a prime number?",
    "Continue the list: red, orange, yellow, green,",
)

# For a tiny model: some that n-grams draft well for, some that they do not.
SHORT = ("one two three one two three one", "the river rises", "a b c a b c a b", "def add(left, right):")
