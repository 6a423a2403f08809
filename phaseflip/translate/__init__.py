"""Device IR -> Program: Python for all lanes at once.

translator: statements and control flow. expressions: values. block_source: blocks under construction. layout: slots and
offsets. vector_loops: loops whose passes run as one. control_flow: where lanes meet again. Imports ir, machine and before.
"""
