"""Long measurements go on where they were stopped, and nothing that was measured otherwise counts."""

import json
from dataclasses import dataclass

import pytest

from cluster.bench.resumable import Progress


@dataclass(frozen=True)
class Part:
    key: str


PARTS = [Part("a"), Part("b"), Part("c")]


def test_what_was_done_before_is_not_done_again(tmp_path):
    out, done = tmp_path / "results" / "parts.jsonl", []

    def check(part):
        if part.key == "b" and len(done) == 1:
            raise KeyboardInterrupt
        done.append(part.key)
        return {"found": part.key.upper()}

    with pytest.raises(KeyboardInterrupt):
        Progress(out, "part").run(PARTS, 1, check)
    resumed = Progress(out, "part")
    assert list(resumed.records) == ["a"]
    done.append("resumed")
    resumed.run(PARTS, 1, check)
    assert done == ["a", "resumed", "b", "c"]
    assert {key: record["found"] for key, record in resumed.records.items()} == {"a": "A", "b": "B", "c": "C"}
    assert [json.loads(line)["part"] for line in out.read_text().splitlines()] == ["a", "b", "c"]


def test_parts_of_another_setting_do_not_count(tmp_path):
    out = tmp_path / "parts.jsonl"
    Progress(out, "part", {"tokens": 8}).run(PARTS, 1, lambda _: {})
    # As an older version would have written them.
    with out.open("a") as file:
        file.write('{"seconds": 1.0}\n')
    assert not Progress(out, "part", {"tokens": 9}).records
    assert len(Progress(out, "part", {"tokens": 8}).records) == 3


def test_when_its_time_is_over_no_part_is_begun(tmp_path):
    progress = Progress(tmp_path / "parts.jsonl", "part")
    progress.run(PARTS, -1, lambda _: {})
    assert not progress.records
