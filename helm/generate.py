"""Writes what is made from other files of the chart: values.schema.json, README.md, the rendered examples.

`make chart` runs it; with --check it writes nothing and fails if a file is not what it would write.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cluster.config import ClusterConfig
from helm.fetch_tools import fetch

ROOT = Path(__file__).parent
CHART = ROOT / "truedraft"
EXAMPLES = CHART / "examples"
RENDERED = "rendered.yaml"
# What clusters are taken to know beyond Kubernetes itself.
APIS = (
    "ray.io/v1",
    "cert-manager.io/v1",
    "gateway.networking.k8s.io/v1",
    "monitoring.coreos.com/v1",
    "monitoring.coreos.com/v1alpha1",
)

# Fields that the chart sets itself, or that mean nothing on Kubernetes.
_NOT_HERE: dict[str, tuple[str, ...]] = {
    "ClusterConfig": ("ray_address", "start_timeout_s", "emulation"),
    "Gateway": ("host", "http_port", "grpc_port", "keys_file"),
    "DraftingChannel": ("certificate", "private_key", "authority"),
}
_UNUSED = ("Emulation", "EmulatedNode")


def schema() -> dict[str, Any]:
    """The schema of the values, that of the configuration in it."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "values.schema.yaml").read_text())
    config = ClusterConfig.model_json_schema(ref_template="#/$defs/config.{model}")
    sections = {name: section for name, section in config.pop("$defs").items() if name not in _UNUSED}
    for name, section in {**sections, "ClusterConfig": config}.items():
        # Docstrings, which change more often than fields.
        section.pop("description", None)
        for field in _NOT_HERE.get(name, ()):
            del section["properties"][field]
    document["properties"]["config"] = config
    # Told apart here and not by `allOf`, for the sake of the validator's words.
    definitions = document["$defs"]
    definitions["group"]["properties"] |= definitions["pod"]["properties"]
    document["$defs"] |= {f"config.{name}": section for name, section in sections.items()}
    return document


def rendered(example: Path) -> str:
    """What `helm template` makes of an example's values. Raises CalledProcessError."""
    command = [str(fetch()["helm"]), "template", "truedraft", str(CHART), "--namespace", "truedraft"]
    apis = [part for api in APIS for part in ("--api-versions", api)]
    values = ["--values", str(example / "values.yaml")]
    done = subprocess.run([*command, *values, *apis], check=True, capture_output=True, text=True)
    return done.stdout


def readme(text: str) -> str:
    """The README with the tables between its markers made anew."""
    made = {
        "values": _table(("value", "default", "what it is"), documented_values()),
        "group": _table(("field", "what it is"), _group()),
        "config": _table(("field", "default"), _fields(schema()["properties"]["config"])),
    }
    for name, table in made.items():
        before, begin, rest = text.partition(f"<!-- {name}: made by helm/generate.py -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not (begin and end):
            raise ValueError(f"README.md has no markers of {name}")
        text = f"{before}{begin}{table}{end}{after}"
    return text


def documented_values() -> Iterator[tuple[str, ...]]:
    """Dotted name, default and comment of every value that has a `# --` comment."""
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("# --"):
            comment = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#"):
            if comment:
                comment.append(stripped.removeprefix("#").strip())
        elif stripped.partition(":")[1] and not stripped.startswith("- "):
            path = [(depth, key) for depth, key in path if depth < indent]
            path.append((indent, stripped.partition(":")[0]))
            if comment:
                value = defaults
                for _, key in path:
                    value = value[key]
                yield ".".join(key for _, key in path), _inline(value), " ".join(comment)
            comment = []


def _group() -> Iterator[tuple[str, ...]]:
    definitions = schema()["$defs"]
    for name, field in definitions["group"]["properties"].items():
        yield name, field["description"]
        for inner, each in field.get("properties", {}).items():
            if "description" in each:
                yield f"{name}.{inner}", each["description"]


def _fields(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
    definitions = schema()["$defs"]
    for name, field in section["properties"].items():
        if name == "placement":
            continue
        inner = definitions.get(field.get("$ref", "").removeprefix("#/$defs/"), {})
        if "properties" in inner:
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _inline(field.get("default"))


def _inline(value: Any) -> str:
    if value in (None, "", {}, []):
        return ""
    return f"`{json.dumps(value)}`".replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in rows]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Every file that is made, with its content."""
    made = {
        CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n",
        CHART / "README.md": readme((CHART / "README.md").read_text()),
    }
    # The schema is needed to render.
    return made | {values.parent / RENDERED: "" for values in sorted(EXAMPLES.glob("*/values.yaml"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which files are out of date")
    check = parser.parse_args().check
    stale = []
    for path, content in files().items():
        content = content or rendered(path.parent)
        if not path.exists() or path.read_text() != content:
            stale.append(str(path.relative_to(ROOT.parent)))
            if not check:
                path.write_text(content)
    if stale:
        print(*stale, sep="\n")
    if stale and check:
        sys.exit("out of date; run `make chart`")


if __name__ == "__main__":
    main()
