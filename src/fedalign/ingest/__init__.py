"""How are my files read? From cells to columns, annotations, and what the parties agree on before round 1.

Imports `inputs`, `labels.names`, `types` and `system`.
"""
