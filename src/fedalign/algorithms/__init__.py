"""Which methods are there? One file per method; the file name is the value of `algorithm.name`.

Imports `learning`, `types` and `errors`; never another plugin folder.
"""
