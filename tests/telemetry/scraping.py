"""Reads Prometheus' text format."""

import re

_LINE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")


def series(text):
    """(name, labels) -> value."""
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            found[match[1], tuple(sorted(labels.items()))] = float(match[3])
    return found


def total(found, name, **labels):
    """The sum over all series of that name that have these labels."""
    chosen = [(dict(held), value) for (each, held), value in found.items() if each == name]
    return sum(value for held, value in chosen if labels.items() <= held.items())
