"""How does a model learn? The algorithm's hooks, local training, rounds, losses, metrics and aggregation.

Imports `types`, `randomness`, `errors` and `system`.
"""
