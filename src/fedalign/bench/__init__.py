"""How fast is it here? Measurements of this package beside an ordinary implementation of the same model.

Imports `learning`, `encoders`, `engines` and `runs`.
"""
