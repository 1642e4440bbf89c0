"""What turns a row into a vector? One file per encoder; the file name is the value of `encoder.name`.

Imports `inputs`, `learning.dropout` and `types`; never another plugin folder.
"""
