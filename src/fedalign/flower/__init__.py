"""How does it run for real? Server, parties, messages and the deployment kit, on Flower.

Imports `runs`, `ingest`, `learning` and `labels`.
"""
