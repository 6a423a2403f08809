"""Studies of many mutants, each in a worker process.

plan: which mutants, run where. mutant_run: one of them. results: the file of outcomes, and what they add up to. tables,
page: for people. dask_cluster: the same on a cluster. Imports faults and all before it.
"""
