"""The process and its files; nothing of kernels. Imports errors and grammar.

folders, json_files: what commands write and read. output: standard output, which may be lost. interrupts: Ctrl-C. user_code:
a user's files, imported. worker_pool: calls in processes that may crash or hang.
"""
