"""Regenerates the protocol stubs beside their .proto files; --out DIR writes them elsewhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Writes *_pb2.py, *_pb2.pyi and *_pb2_grpc.py for every .proto below protos/ into `out`."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    command = ["protoc", f"-I{ROOT}", f"-I{well_known}"]
    command += [f"--{kind}={out}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main([*command, *sources]) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT)
    arguments = parser.parse_args()
    generate(arguments.out)
    sys.stdout.write(f"generated into {arguments.out}\n")
