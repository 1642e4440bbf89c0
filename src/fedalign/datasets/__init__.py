"""Which public data are there? One file per data set; the file name is the value of `dataset.name`.

Imports `data`, `ingest`, `inputs` and `labels.names`; never another plugin folder.
"""
