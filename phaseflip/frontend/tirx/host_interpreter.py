"""The host part of a lowered kernel, executed: argument checks, launch geometry, kernel arguments.

TVM lowers the host part to a C-like function over DLTensor structures. This interpreter runs it with array descriptions
in place of pointers and stops at the kernel launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import BadInput, UnsupportedInstruction
from ...ir import nodes as ir
from ...ir.arithmetic import cast, numpy_dtype, truncdiv, truncmod
from ...machine.copies.tensor_map import TensorMap, encode_tiled

# Fields of TVM's struct accessors (tirx/builtin.h, TVMStructFieldKind).
_DATA, _SHAPE, _STRIDES, _NDIM, _CODE, _BITS, _LANES, _BYTE_OFFSET, _DEVICE_ID, _DEVICE_TYPE = (
    range(1, 11)
)
_ANY_TYPE, _ANY_PADDING, _ANY_VALUE, _INT64_ELEMENT = 13, 14, 15, 17
_INT, _FLOAT, _KERNEL_TENSOR = 1, 3, 7  # TVM's FFI type index; the last one is a DLTensor pointer
_CUDA = 2
_DTYPE_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_FLOAT_CODES = {
    "bfloat16": 4, "float8_e3m4": 7, "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11,
    "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14, "float6_e2m3fn": 15, "float6_e3m2fn": 16,
    "float4_e2m1fn": 17,
}  # fmt: skip
"""DLPack's codes (DLDataTypeCode) of the types that NumPy does not have itself."""
_FEWER_BITS = {"float6_e2m3fn": 6, "float6_e3m2fn": 6, "float4_e2m1fn": 4}


@dataclass(frozen=True)
class Launch:
    """A kernel launch: arguments in the device function's order, sizes of the thread axes, dynamic shared memory."""

    arguments: list[Any]
    extents: dict[str, int]
    dynamic_shared_bytes: int


@dataclass
class _Tensor:
    """A DLTensor as the host code sees it."""

    name: str
    array: np.ndarray


@dataclass
class HostPlan:
    """The host function; `launch` runs it for given arrays."""

    function: ir.Function
    names: list[str]
    device: ir.Function
    _launches: dict[Any, Launch] = field(default_factory=dict, init=False, repr=False)

    def launch(self, arguments: list[Any]) -> Launch:
        """Run the host part, once for all arrays of the same form (it sees no more of them) and numbers passed by value.

        Pointer arguments of the launch are the parameter names. Raises BadInput with TVM's own sentence where one of
        its argument checks fails.
        """
        form = tuple(
            (a.shape, a.strides, a.dtype) if isinstance(a, np.ndarray) else (type(a), repr(a))
            for a in arguments
        )
        if form not in self._launches:
            with np.errstate(all="ignore"):  # a float64 may be too large for a float32
                self._launches[form] = _Interpreter(self, arguments).run()
        return self._launches[form]


@dataclass
class _MapSlot:
    """Stack space of a tensor map, by the name of the variable that points to it."""

    name: str = "tensor map"
    map: TensorMap | None = None


def _type_index(argument: Any) -> int:
    if isinstance(argument, _Tensor):
        return _KERNEL_TENSOR
    return _FLOAT if isinstance(argument, float) else _INT


class _Stop(Exception):
    """The kernel launch was reached."""


class _Interpreter:
    def __init__(self, plan: HostPlan, arguments: list[Any]) -> None:
        self.plan = plan
        self.args = [
            _Tensor(name, a) if isinstance(a, np.ndarray) else a
            for name, a in zip(plan.names, arguments, strict=True)
        ]
        self.values: dict[Any, Any] = {}
        self.stack: dict[tuple[int, int], Any] = {}
        self.result: Launch | None = None

    def run(self) -> Launch:
        params = self.plan.function.params
        by_name = {p.name: p for p in params}
        for name, value in (
            ("self_handle", 0),
            ("args", self.args),
            ("num_args", len(self.args)),
            ("result", 0),
        ):
            if name in by_name:
                self.values[by_name[name]] = value
        try:
            self.block(self.plan.function.body)
        except _Stop:
            pass
        if self.result is None:
            raise BadInput("the kernel's host part ends without launching it (an empty grid?)")
        return self.result

    def block(self, body: list[ir.Stmt]) -> None:
        for s in body:
            if isinstance(s, ir.Let):
                value = self.values[s.var] = self.value(s.value)
                if isinstance(value, _MapSlot):
                    value.name = s.var.name
            elif isinstance(s, ir.Assert):
                if not self.value(s.condition):
                    raise BadInput(
                        f"{s.kind} from TVM's argument check: {' '.join(s.message.split())}"
                    )
            elif isinstance(s, ir.If):
                self.block(s.then if self.value(s.condition) else s.orelse)
            elif isinstance(s, ir.Evaluate):
                self.value(s.call)
            elif isinstance(s, ir.Jump):
                raise _Stop
            elif not isinstance(s, ir.Allocate):
                raise UnsupportedInstruction(
                    f"the simulator has no meaning for {type(s).__name__} in host code"
                )

    def value(self, e: Any) -> Any:
        if isinstance(e, ir.Const):
            return e.value
        if isinstance(e, ir.Var):
            return self.values[e]
        if isinstance(e, ir.Binary):
            return self.binary(e)
        if isinstance(e, ir.Unary):
            return not self.value(e.a)
        if isinstance(e, ir.Cast):
            value = self.value(e.a)
            if (
                e.bits
                or "handle" in (e.dtype, getattr(e.a, "dtype", "handle"))
                or not isinstance(value, (int, float, np.floating))
            ):
                return value
            dtype = numpy_dtype(e.dtype)
            return cast(value, dtype, 8 * dtype.itemsize, dtype.kind)
        if isinstance(e, ir.Select):
            return self.value(e.a if self.value(e.condition) else e.b)
        if isinstance(e, ir.Address):
            buffer = e.buffer.root
            base = buffer.parameter if buffer.parameter is not None else buffer.address
            return self.value(base)
        if isinstance(e, ir.Call):
            return self.call(e)
        raise UnsupportedInstruction(
            f"the simulator has no meaning for {type(e).__name__} in host code"
        )

    def binary(self, e: ir.Binary) -> Any:
        if e.op == "and":
            return self.value(e.a) and self.value(e.b)
        if e.op == "or":
            return self.value(e.a) or self.value(e.b)
        a, b = self.value(e.a), self.value(e.b)
        if e.op in ("eq", "ne"):
            return (a == b) == (e.op == "eq")
        table: dict[str, Any] = {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: truncdiv(a, b),
            "mod": lambda: truncmod(a, b), "floordiv": lambda: a // b, "floormod": lambda: a % b,
            "lt": lambda: a < b, "le": lambda: a <= b, "gt": lambda: a > b, "ge": lambda: a >= b,
            "min": lambda: min(a, b), "max": lambda: max(a, b), "shl": lambda: a << b, "shr": lambda: a >> b,
            "bitand": lambda: a & b, "bitor": lambda: a | b, "bitxor": lambda: a ^ b,
        }  # fmt: skip
        return table[e.op]()

    def call(self, e: ir.Call) -> Any:
        name = e.name.removeprefix("tirx.")
        if name == "isnullptr":
            return self.value(e.args[0]) is None
        if name == "tvm_stack_alloca" and self.value(e.args[0]) == "tensormap":
            return _MapSlot()
        if name == "tvm_stack_alloca":
            return self.stack
        if name == "handle_add_byte_offset":
            base, offset = self.value(e.args[0]), self.value(e.args[1])
            return (base, offset) if isinstance(base, str) and offset else base
        if name == "tvm_struct_get":
            return self.struct_get(
                self.value(e.args[0]), self.value(e.args[1]), self.value(e.args[2])
            )
        if name == "tvm_struct_set":
            self.stack[self.value(e.args[1]), self.value(e.args[2])] = self.value(e.args[3])
            return 0
        if name == "tvm_call_packed_lowered":
            return self.packed(e)
        raise UnsupportedInstruction(
            f"{e.site}: the simulator has no meaning for the host call {name}"
        )

    def struct_get(self, owner: Any, index: int, kind: int) -> Any:
        if kind in (_ANY_TYPE, _ANY_VALUE):
            return _type_index(owner[index]) if kind == _ANY_TYPE else owner[index]
        if kind == _INT64_ELEMENT:
            return owner[index]
        array = owner.array
        itemsize = array.itemsize
        fields: dict[int, Any] = {
            _DATA: owner.name, _SHAPE: array.shape, _STRIDES: tuple(s // itemsize for s in array.strides),
            _NDIM: array.ndim, _BITS: _FEWER_BITS.get(array.dtype.name, 8 * itemsize), _LANES: 1, _BYTE_OFFSET: 0,
            _DEVICE_ID: 0, _DEVICE_TYPE: _CUDA,
            _CODE: _FLOAT_CODES.get(array.dtype.name, _DTYPE_CODES.get(array.dtype.kind, 3)),
        }  # fmt: skip
        return fields[kind]

    def packed(self, e: ir.Call) -> Any:
        called, begin, end = self.value(e.args[0]), self.value(e.args[2]), self.value(e.args[3])
        if called == "__tvm_set_device":
            return 0
        if called == "runtime.cuTensorMapEncodeTiled":
            slot = self.stack[begin, _ANY_VALUE]
            slot.map = encode_tiled(
                slot.name, [self.stack[i, _ANY_VALUE] for i in range(begin, end)]
            )
            return 0
        if called != self.plan.device.name:
            raise UnsupportedInstruction(
                f"{e.site}: the simulator has no meaning for the host call {called}"
            )
        values = [self.stack[i, _ANY_VALUE] for i in range(begin, end)]
        values = [v.map if isinstance(v, _MapSlot) else v for v in values]
        n = len(self.plan.device.params)
        values[:n] = [
            numpy_dtype(p.dtype).type(v) if isinstance(v, (float, np.floating)) else v
            for p, v in zip(self.plan.device.params, values[:n], strict=True)
        ]
        geometry = dict(zip(self.plan.device.launch_params, values[n:], strict=True))
        shared = geometry.pop("tirx.use_dyn_shared_memory", 0)
        self.result = Launch(
            values[:n], {axis: int(v) for axis, v in geometry.items()}, int(shared)
        )
        raise _Stop
