"""The same bits under another type, and rows of memory under their addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _bitcast(source: Any, target: Any, kind: Any) -> Any:
    def bitcast(typing: Any, value: Any) -> Any:
        def generate(context: Any, build: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return build.bitcast(arguments[0], kind)

        return target(source), generate

    return intrinsic(bitcast)


def _pointer(target: Any, kind: Any) -> Any:
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, build: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return build.inttoptr(arguments[0], kind.as_pointer())

        return types.CPointer(target)(types.int64), generate  # type: ignore[no-untyped-call]

    return intrinsic(pointer)


float_of_bits = _bitcast(types.int32, types.float32, ir.FloatType())
bits_of_double = _bitcast(types.float64, types.int64, ir.IntType(64))
double_of_bits = _bitcast(types.int64, types.float64, ir.DoubleType())
# For numba's carray.
floats_at = _pointer(types.float32, ir.FloatType())
doubles_at = _pointer(types.float64, ir.DoubleType())
