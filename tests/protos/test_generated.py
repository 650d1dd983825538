"""The committed stubs are those that the .proto files give."""

import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[2] / "protos"


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    out = tmp_path_factory.mktemp("stubs")
    subprocess.run([sys.executable, str(PROTOS / "generate.py"), "--out", str(out)], check=True, timeout=120)
    return out


def committed_stubs() -> list[str]:
    found = (path for path in PROTOS.rglob("*_pb2*.py*") if path.suffix != ".pyc")
    return sorted(str(path.relative_to(PROTOS)) for path in found)


def test_every_proto_has_its_three_stubs():
    protos = [path.relative_to(PROTOS).with_suffix("") for path in PROTOS.rglob("*.proto")]
    endings = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    assert committed_stubs() == sorted(f"{proto}{ending}" for proto in protos for ending in endings)


@pytest.mark.parametrize("stub", committed_stubs())
def test_committed_stub_is_what_the_proto_gives(stub, regenerated):
    assert (PROTOS / stub).read_text() == (regenerated / stub).read_text()


def test_a_changed_proto_would_be_noticed(regenerated):
    folder = PROTOS / "truedraft/v1"
    source = regenerated / "changed"
    target = source / "truedraft/v1"
    target.mkdir(parents=True)
    original = (folder / "drafting.proto").read_text()
    changed = original.replace("fixed32 epoch = 2;", "fixed32 epoch = 99;")
    assert changed != original
    (target / "drafting.proto").write_text(changed)
    (target / "inference.proto").write_text((folder / "inference.proto").read_text())
    options = [f"-I{source}", f"--python_out={source}", "truedraft/v1/drafting.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True, timeout=120)
    assert (target / "drafting_pb2.py").read_text() != (folder / "drafting_pb2.py").read_text()
