"""The program as plain values: device IR before translation, and the executable form after it.

nodes: the IR. place: an instruction's place, and which of two is first. queries: questions about the IR. instruction: the
registry, PTX mnemonic -> its meaning. program: basic blocks of Python. arithmetic: what they call for operators. Imports
errors.
"""
