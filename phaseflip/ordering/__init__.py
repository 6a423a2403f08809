"""Who knows what: happens-before among threads and asynchronous operations. It knows no memory.

knowledge: vector clocks. happens_before: releases, acquires, issue, completion. fences: what fences release. copy_order:
cp.async. strong_order: strong loads and stores. warp_meetings: instructions with .sync. Imports ir and findings.
"""
