"""Synchronisation: named barriers (bar, bar_red), the barrier of a cluster, mbarriers; and what is wrong with their use."""
