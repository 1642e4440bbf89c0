"""How do I use a model? Loading, predicting rows and files, adding a class, exporting.

Imports `learning`, `inputs`, `ingest` and `labels`.
"""
