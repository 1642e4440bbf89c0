"""How does a label name become a vector? Names, co-occurrence counts, the label graph, sentence models.

Imports `inputs.words`, `types`, `randomness` and `system`.
"""
