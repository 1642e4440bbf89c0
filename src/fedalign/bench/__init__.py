"""How fast is it? Measurements of this package and of an ordinary implementation of the same model.

Imports `learning`, `encoders`, `engines` and `runs`.
"""
