"""The front end: a kernel as its author wrote it -> device IR. Only here, and in faults, may TVM be imported.

tirx: TIRx, TVM's dialect. Imports translate and all before it.
"""
