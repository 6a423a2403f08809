"""Who touched what, and was it ordered: the race detector.

shadow: which access was the last to each byte. collision: do two accesses collide. detector: what the machine tells.
hidden_reads, copies, tmem_shadow: reads behind reads, cp.async, Tensor Memory. fence_rules: which fence a pair lacks.
cta_lifetime: accesses to CTAs that may have left. explanation, remedies, completion, known_order: a race in words. Imports
ordering and all before it.
"""
