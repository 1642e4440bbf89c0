"""What do we need from the operating system? Atomic files, and an allocator that keeps memory.

Imports nothing of this package.
"""
