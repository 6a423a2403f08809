"""TVM 0.27's dialect: calls of its table of PTX instructions and of its CUDA helpers, decoded as they are read.

`table.py` reads any call of the table by TVM's own description of it; `effects.py` and `results.py` say what the
simulator makes of an entry; `helpers.py` does so for T.cuda; `reading.py` turns calls into statements of the device IR.
"""
