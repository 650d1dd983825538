"""The Dockerfile as far as it can be checked without building it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker" / "Dockerfile").read_text()
STAGES = re.split(r"^FROM ", TEXT, flags=re.M)[1:]


def test_hadolint_has_nothing_to_object():
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / "hadolint", ROOT / "docker" / "Dockerfile"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_what_it_copies_is_there_and_let_through():
    let_through = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.M):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in let_through


def test_it_copies_every_package_of_the_project():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    for package in packages | {"protos"}:
        assert TEXT.count(f"COPY {package} {package}") == 2


def test_it_runs_as_an_ordinary_user_with_what_kuberays_probes_need():
    assert "USER 1000:1000" in TEXT
    assert re.search(r"apt-get install .* bash .* wget", TEXT)
    names = [re.search(r" AS (\S+)", stage)[1] for stage in STAGES]
    assert names[-2:] == ["cpu", "cuda"]
    for stage in STAGES[-2:]:
        assert "USER" not in stage
        assert stage.startswith("run AS")


def test_no_base_is_unpinned_and_no_model_is_baked_in():
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+$", TEXT, re.M)
    assert "latest" not in TEXT
    assert not re.search(r"smollm2|huggingface|\.gguf|\.safetensors", TEXT)
