"""How are public data prepared? Downloads, caches, partitions among clients, and statistics of them.

Imports `inputs`, `types`, `randomness` and `system`.
"""
