"""The tensor memory accelerator: bulk copies of boxes of a tensor between global and shared memory.

How such copies are ordered, `bulk_copy.py` says.

Source: PTX ISA 9.1, cp.async.bulk.tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault
from ...ir.instruction import instruction
from ...ir.traits import MBARRIER
from ..memory.load_store import RAW, SHARED_BASE
from .bulk_copy import Copy, copy_to, start_load, start_store
from .tensor_map import NAN_FILL, TensorMap

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA
    from ..threads.warp import Group

TENSOR_MAP_BASE = 3 << 32
TENSOR_MAP_BYTES = 128


def tensor_map_at(g: Group, address: Any) -> TensorMap:
    """The tensor map that a kernel parameter holds."""
    index, rest = divmod(int(address) - TENSOR_MAP_BASE, TENSOR_MAP_BYTES)
    maps = g.cta.cluster.tensor_maps
    if rest or not 0 <= index < len(maps):
        raise KernelFault(
            "out-of-bounds",
            f"address {int(address):#x} is not that of a tensor map parameter",
            "pass the address of a tensor map that is a parameter of the kernel",
        )
    return maps[index]


class _Box:
    """A box of a tensor map and its place in shared memory: the bytes on both sides."""

    def __init__(
        self, g: Group, tensor_map: TensorMap, cta: CTA, start: int, corner: tuple[int, ...], stores: bool
    ) -> None:  # fmt: skip
        self.map, self.cta, self.shared = tensor_map, cta, cta.shared
        tensor_map.check_corner(corner, stores)
        self.memory = next(m for m in g.cta.globals if m.name_at(0) == tensor_map.buffer)
        if start % 128:
            raise KernelFault(
                "misaligned-access",
                f"the shared address of a bulk tensor copy is at byte {start}; a multiple of 128 is legal",
                "align the shared buffer, and each stage in it, to 128 bytes (1024 with the 128-byte swizzle)",
            )
        cache = g.cta.cluster.operand_cache
        key = ("box", start, tensor_map.box_bytes, tensor_map.swizzle)
        if key not in cache:
            cache[key] = tensor_map.shared_units(start)
        self.units: np.ndarray = cache[key]
        if (
            16 * int(self.units.max()) + 16 > self.shared.size
        ):  # swizzling reaches to the end of a line
            raise KernelFault(
                "out-of-bounds",
                f"a box of {tensor_map.box_bytes} bytes at byte {start} of shared memory, which has {self.shared.size}",
                "make the shared buffer as large as the box, or the box smaller",
            )
        self.global_units = tensor_map.global_units(corner)
        if self.global_units is None:
            self.offsets, self.inside = tensor_map.element_offsets(corner, whole_units=stores)
            last = self.offsets[self.inside].max(initial=0) + tensor_map.element_bytes
            if last > self.memory.size:
                raise KernelFault(
                    "out-of-bounds",
                    f"a box at {corner} of tensor map {tensor_map.name} ends at byte {last} of {tensor_map.buffer}, which"
                    f" has {self.memory.size}",
                    f"encode the tensor map with the dimensions and strides of {tensor_map.buffer}",
                )

    @property
    def nbytes(self) -> int:
        """Bytes that are moved and counted."""
        return self.map.box_bytes

    def touched(self) -> np.ndarray:
        """16-byte units of the buffer that the box touches."""
        if self.global_units is not None:
            return self.global_units
        return np.unique(self.offsets[self.inside] >> 4)

    def load(self) -> None:
        """Global to shared; outside the tensor zero, or NaN."""
        if self.global_units is not None:
            self.shared.view(RAW[16])[self.units] = self.memory.view(RAW[16])[self.global_units]
            return
        dtype = RAW[self.map.element_bytes]
        values = np.zeros(self.map.box_shape, dtype)
        if self.map.nan_fill:
            values.reshape(-1).view(np.uint32)[...] = NAN_FILL
        values[self.inside] = self.memory.view(dtype)[
            self.offsets[self.inside] // self.map.element_bytes
        ]
        self.shared.view(RAW[16])[self.units] = values.reshape(-1).view(RAW[16])

    def store(self) -> None:
        """Shared to global, as far as the box lies inside the tensor."""
        units = self.shared.view(RAW[16])[self.units]
        if self.global_units is not None:
            self.memory.view(RAW[16])[self.global_units] = units
            return
        dtype = RAW[self.map.element_bytes]
        values = units.view(dtype).reshape(self.map.box_shape)
        self.memory.view(dtype)[self.offsets[self.inside] // self.map.element_bytes] = values[
            self.inside
        ]


@instruction("cp.async.bulk.tensor.g2s", completes=MBARRIER, measure="bulk copies")
def cp_async_bulk_tensor_g2s(
    g: Group, place: Place, dst: Any, mbar: Any, tensor_map: Any, coordinates: Any, cta_mask: Any = None,
    cta_group: int = 1,
) -> None:  # fmt: skip
    """cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes{.multicast::cluster}{.cta_group}
    [dst], [map, coords], [mbar]{, ctaMask}.

    One box from global to shared memory, with a mask to the same offset in each CTA whose bit is set. Its full size is
    counted on a barrier, whatever lies outside the tensor: the one in the CTA it goes to, or with cta_group::2 the one in
    that CTA or its peer, whichever has the rank parity of the CTA that `mbar` lies in.
    """
    operands = (dst, mbar, tensor_map, cta_mask, *coordinates)
    lanes = [g.lanes.tolist()] + [g.per_lane(v) for v in operands]
    cluster = g.cta.cluster
    for thread, to, barrier_address, map_address, mask, *corner in zip(*lanes, strict=True):
        targets = [to]
        if mask is not None:
            targets = cluster.multicast(to, mask)
            cluster.multicasts.add(place)
        copies: list[Copy] = []
        for target in targets:
            cta = cluster.owner(target)
            address = _signalled(cta, barrier_address, cta_group, mask is not None)
            offset = (target | SHARED_BASE) - cta.shared_base
            box = _Box(g, tensor_map_at(g, map_address), cta, offset, tuple(corner), stores=False)
            copies.append(copy_to(g, place, thread, box, address, (barrier_address, mask)))
        start_load(g, place, thread, copies)


def _signalled(cta: CTA, mbar: int, cta_group: int, multicast: bool) -> int:
    """Address of the barrier that a copy into a CTA is counted on, where `mbar` was given."""
    given, rank = cta.cluster.owner(mbar).rank, cta.rank
    if cta_group == 2:
        rank = rank & ~1 | given & 1
    if not multicast and given != rank:
        raise KernelFault(
            "out-of-bounds",
            f"a copy into CTA {cta.rank} of the cluster names a barrier of CTA {given}: it must lie in the same CTA, or "
            "with cta_group::2 in the same pair",
            "pass the barrier of the CTA that the data goes to",
        )
    return cta.cluster.multicast(mbar, 1 << rank)[0]


@instruction(
    "cp.async.bulk.tensor.s2g",
    completes="cp.async.bulk.wait_group",
    stores_global=True,
    measure="bulk copies",
)
def cp_async_bulk_tensor_s2g(
    g: Group, place: Place, src: Any, tensor_map: Any, coordinates: Any
) -> None:
    """cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group [map, coords], [src]: one box to global memory.

    What lies outside the tensor is not written. Completion is told by bulk groups.
    """
    lanes = [g.lanes.tolist()] + [g.per_lane(v) for v in (src, tensor_map, *coordinates)]
    for thread, start, map_address, *corner in zip(*lanes, strict=True):
        offset = start - g.cta.shared_base
        box = _Box(g, tensor_map_at(g, map_address), g.cta, offset, tuple(corner), stores=True)
        start_store(g, place, thread, box)
