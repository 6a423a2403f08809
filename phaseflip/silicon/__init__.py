"""Fault studies on a GPU: mutants_on_gpu plans and compares, launches runs there, report makes tables. Imports study."""
