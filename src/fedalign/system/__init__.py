"""What do we ask of the operating system? Atomic files, threads and memory.

Imports nothing of this package.
"""
