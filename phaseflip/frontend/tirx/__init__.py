"""TIRx: lowering by TVM's own passes, and the only readers of TVM's IR.

lowering: PrimFunc -> LoweredKernel, and text or libraries for a GPU. reader: TVM's IR -> ir.nodes. dialect, tvm_names:
what depends on the TVM release. places: the user's lines through all passes. parameters: numbers by value.
vector_values: vectors lane by lane. host_interpreter: argument checks and launch geometry, executed. decoding, arguments:
intrinsics -> PTX mnemonics with named operands. v0_26, v0_27: how each TVM release spells them. edit: rewrites of a
PrimFunc, for faults. parser_stacks: why lowering is fast. version: which TVM is read.
"""
