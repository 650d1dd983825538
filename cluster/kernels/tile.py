"""The one matrix kernel: a few rows times a narrow panel of weights, in LLVM IR.

Weights are float32, or int8 with a scale for each output: the integers are multiplied, the sums are scaled.

Every output is one chain of fused multiply-adds over k in ascending order, held in a register lane. Its
bits therefore follow from its own row and its own column alone: not from how many rows are computed
together, not from the number of threads, and not from the width of the machine's vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from cluster.kernels import compiled

LANES = 16
# Columns of a panel of weights: two vectors.
PANEL = 2 * LANES
# Rows of one tile: their sums and a panel's row of weights fill the registers, 32 of 16 floats or 16 of 8.
TILE = 12 if binding.get_host_cpu_features().get("avx512f") else 3

_FLOAT, _INDEX, _INT, _BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_LINE = 64  # bytes of a cache line
# Sums of a tile above which the loop stays as it is: twice as many products at a time would not fit the
# registers, and what is put aside in every turn halves the rate.
_UNROLLED = 16
_INTEGERS = ir.VectorType(_BYTE, LANES)
_ARGUMENTS = [types.intp] * 8 + [types.boolean] + [types.intp] * 3


def _tile(columns: int, fetching: bool) -> Any:
    """The kernel for 1 to TILE rows and `columns`, a multiple of LANES; arguments as of `multiply`.

    like: an array of the weights' type, or a number of it; fetch, fetch_step: where the first step into the
    depth asks for a panel's row of cache lines, and how many bytes further on each step does; scales: the
    address of the outputs' scales, 0 to leave the sums as they are.
    """

    @intrinsic
    def tile(
        typing: Any,
        like: Any,
        rows: Any,
        x: Any,
        x_step: Any,
        w: Any,
        w_step: Any,
        y: Any,
        y_step: Any,
        depth: Any,
        add: Any,
        fetch: Any,
        fetch_step: Any,
        scales: Any,
    ) -> Any:
        integers = getattr(like, "dtype", like) == types.int8

        def generate(context: Any, build: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, count, *others = arguments
            done = build.append_basic_block("done")
            cases = build.switch(count, done)
            for rows in range(1, TILE + 1):
                case = build.append_basic_block(f"rows{rows}")
                cases.add_case(_INDEX(rows), case)
                build.position_at_end(case)
                _emit(build, rows, columns // LANES, fetching, integers, *others)
                build.branch(done)
            build.position_at_end(done)
            return context.get_dummy_value()

        return types.void(like, *_ARGUMENTS), generate

    return tile


def _emit(
    build: ir.IRBuilder,
    rows: int,
    vectors: int,
    fetching: bool,
    integers: bool,
    x: Any,
    x_step: Any,
    w: Any,
    w_step: Any,
    y: Any,
    y_step: Any,
    depth: Any,
    add: Any,
    fetch: Any,
    fetch_step: Any,
    scales: Any,
) -> None:
    x, y = (build.inttoptr(address, _FLOAT.as_pointer()) for address in (x, y))
    w = build.inttoptr(w, (_BYTE if integers else _FLOAT).as_pointer())
    lefts = [build.gep(x, [build.mul(x_step, _INDEX(row))]) for row in range(rows)]
    outs = [
        _vector(build, y, build.add(build.mul(y_step, _INDEX(row)), _INDEX(LANES * v)))
        for row in range(rows)
        for v in range(vectors)
    ]
    starts = _starts(build, outs, add)
    before, loop, done = build.block, build.append_basic_block("loop"), build.append_basic_block("summed")
    build.branch(loop)
    build.position_at_end(loop)
    k = build.phi(_INDEX)
    sums = [build.phi(_VECTOR) for _ in outs]
    place = build.mul(k, w_step)
    panel = [_weights(build, w, build.add(place, _INDEX(LANES * v)), integers) for v in range(vectors)]
    if fetching:
        lines = -(-vectors * LANES * (1 if integers else 4) // _LINE)
        _fetch(build, build.add(fetch, build.mul(k, fetch_step)), lines)
    fma = _function(build, f"llvm.fma.v{LANES}f32", _VECTOR, [_VECTOR] * 3)
    products = []
    for row in range(rows):
        left = _spread(build, build.load(build.gep(lefts[row], [k])))
        products += [build.call(fma, [left, panel[v], sums[row * vectors + v]]) for v in range(vectors)]
    after = build.add(k, _INDEX(1))
    for phi, start, following in zip([k, *sums], [_INDEX(0), *starts], [after, *products], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(following, loop)
    again = build.cbranch(build.icmp_signed("<", after, depth), loop, done)
    if len(sums) > _UNROLLED:
        again.set_metadata("llvm.loop", _not_unrolled(build.module))
    build.position_at_end(done)
    if integers:
        factors = _factors(build, scales, vectors)
        products = [build.fmul(product, factors[i % vectors]) for i, product in enumerate(products)]
    for out, product in zip(outs, products, strict=True):
        build.store(product, out, align=4)


def _not_unrolled(module: ir.Module) -> Any:
    """What a loop is marked with so that LLVM leaves it as it is: a node whose first operand is itself."""
    node = module.add_metadata([module.add_metadata(["llvm.loop.unroll.disable"])])
    if node.operands[0] is not node:
        node.operands = (node, *node.operands)
    return node


def _weights(build: ir.IRBuilder, base: Any, index: Any, integers: bool) -> Any:
    if not integers:
        return build.load(_vector(build, base, index), align=4)
    stored = build.load(build.bitcast(build.gep(base, [index]), _INTEGERS.as_pointer()), align=1)
    return build.sitofp(build.sext(stored, ir.VectorType(_INT, LANES)), _VECTOR)


def _factors(build: ir.IRBuilder, scales: Any, vectors: int) -> list[Any]:
    """The outputs' scales, or ones where there is no address."""
    one = ir.Constant(_VECTOR, [1.0] * LANES)
    base = build.inttoptr(scales, _FLOAT.as_pointer())
    with build.if_else(build.icmp_signed("!=", scales, _INDEX(0))) as (then, otherwise):
        with then:
            given = [build.load(_vector(build, base, _INDEX(LANES * v)), align=4) for v in range(vectors)]
            giving = build.block
        with otherwise:
            none = build.block
    factors = [build.phi(_VECTOR) for _ in range(vectors)]
    for factor, value in zip(factors, given, strict=True):
        factor.add_incoming(value, giving)
        factor.add_incoming(one, none)
    return factors


def _starts(build: ir.IRBuilder, outs: list[Any], add: Any) -> list[Any]:
    """What the sums begin with: the outputs as they are, or zeros."""
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    with build.if_else(build.trunc(add, ir.IntType(1))) as (then, otherwise):
        with then:
            held, holding = [build.load(out, align=4) for out in outs], build.block
        with otherwise:
            clear = build.block
    starts = [build.phi(_VECTOR) for _ in outs]
    for start, value in zip(starts, held, strict=True):
        start.add_incoming(value, holding)
        start.add_incoming(zero, clear)
    return starts


def _vector(build: ir.IRBuilder, base: Any, index: Any) -> Any:
    return build.bitcast(build.gep(base, [index]), _VECTOR.as_pointer())


def _spread(build: ir.IRBuilder, value: Any) -> Any:
    """The value in every lane."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
    return build.shuffle_vector(build.insert_element(undefined, value, _INT(0)), undefined, first)


def _fetch(build: ir.IRBuilder, address: Any, lines: int) -> None:
    """Asks for cache lines from an address on; a place beyond the weights does no harm.

    They go to the second cache: on their way into the first, too few can be under way at once.
    """
    prefetch = _function(build, "llvm.prefetch.p0", ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
    for line in range(lines):
        place = build.inttoptr(build.add(address, _INDEX(_LINE * line)), _BYTE.as_pointer())
        build.call(prefetch, [place, _INT(0), _INT(2), _INT(1)])


def _function(build: ir.IRBuilder, name: str, result: Any, arguments: list[Any]) -> Any:
    known = build.module.globals.get(name)
    return known or ir.Function(build.module, ir.FunctionType(result, arguments), name)


_FLOAT32 = np.float32(0)


def _multiply(columns: int) -> Callable[..., None]:
    tile = _tile(columns, fetching=False)

    @compiled()
    def multiply(
        x: int, x_step: int, rows: int, w: int, w_step: int, y: int, y_step: int, depth: int, add: bool
    ) -> None:
        """y [rows, columns] = x [rows, depth] w [depth, columns], added to what y holds if `add`; float32.

        x, w, y: addresses; steps: floats from one row to the next; depth: at least 1.
        """
        for row in range(0, rows, TILE):
            left, out = x + 4 * row * x_step, y + 4 * row * y_step
            tile(_FLOAT32, min(TILE, rows - row), left, x_step, w, w_step, out, y_step, depth, add, 0, 0, 0)

    return multiply


multiply_panel = _multiply(PANEL)
multiply_lanes = _multiply(LANES)
# For weights that come from memory.
fetching_tile = _tile(PANEL, fetching=True)
