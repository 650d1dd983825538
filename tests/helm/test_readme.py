"""A new user's way through the chart's README, as far as it goes without a cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helm.chart import CHART, documents, template

ROOT = CHART.parent.parent


def blocks(text, section):
    """The commands of a section's console blocks, each block as one script."""
    _, _, rest = text.partition(f"## {section}\n")
    part = rest.partition("\n## ")[0]
    return [
        "\n".join(re.findall(r"^\$ (.*)$", block, re.M))
        for block in re.findall(r"```console\n(.*?)```", part, re.S)
    ]


def test_every_command_before_the_cluster_works_as_written(tmp_path):
    # In a folder that looks like the repository, so that nothing is written into it.
    for name in ("helm", "cluster", "drafter_service", "verifier_service", "protos"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos")])}
    readme = (CHART / "README.md").read_text()
    scripts = blocks(readme, "Without a cluster")
    assert len(scripts) == 2
    # One shell, as the reader has one.
    script = "set -euo pipefail\n" + "\n".join(scripts)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert documents((tmp_path / "rendered.yaml").read_text()) == documents(template("cpu").stdout)
    assert "minimum: got 0, want 1" in done.stderr


def test_what_it_links_to_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (CHART / "README.md").read_text()):
        assert Path(CHART, target).exists(), target


def test_the_commands_for_a_cluster_install_what_was_rendered():
    [script] = blocks((CHART / "README.md").read_text(), "On a cluster")
    assert "helm/truedraft/examples/cpu/values.yaml" in script
    [image] = {
        container["image"]
        for document in documents(template("cpu").stdout)
        if document["kind"] == "Pod"
        for container in document["spec"]["containers"]
    }
    assert f"--tag {image} ." in script
    assert f"kind load docker-image {image}" in script
