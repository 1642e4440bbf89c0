"""How are public data prepared? Downloads, caches, partitions among clients, and their statistics.

Imports `inputs`, `types`, `randomness` and `system`.
"""
