"""Edits of a PrimFunc before lowering, which keep its lines.

code: statements and edits. expressions: their parts. calls: TVM's calls by one name, whichever release made them.
"""
