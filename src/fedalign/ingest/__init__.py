"""How are my files read? Formats, columns, labels, validation, and what the parties agree on before round 1.

Imports `inputs`, `labels.names`, `types` and `system`.
"""
