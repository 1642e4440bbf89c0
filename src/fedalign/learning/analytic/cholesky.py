"""The Cholesky factorisation of Gram matrices, the most expensive step of the server.

LAPACK as scipy ships it takes half the time of torch's on the processors we measured.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedalign.learning.scoring import threads

_lock = threading.Lock()
_users = 0
_limits = ExitStack()


def factor(matrix: Tensor) -> Tensor | None:
    """The lower factor of a positive definite matrix, of which only the lower triangle is read; None if the matrix is
    not positive definite. The matrix is overwritten."""
    # LAPACK reads columns, so it takes our rows for columns and our lower triangle for an upper one
    function = _lapack().dpotrf if matrix.dtype == torch.float64 else _lapack().spotrf
    found, info = function(matrix.contiguous().numpy().T, lower=0, overwrite_a=1)
    return None if info else torch.from_numpy(found.T)


@contextmanager
def factoring() -> Iterator[Executor]:
    """A pool of threads, one per core, each of which factors on its own core: so the bits do not depend on the number
    of cores. Several may be open at a time."""
    global _users
    with _lock:
        if not _users:
            _limits.enter_context(_libraries().limit(limits=1))
        _users += 1
    try:
        with threads() as pool:
            yield pool
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limits.close()


@cache
def _lapack() -> Any:
    import scipy.linalg.lapack  # takes a moment to load, and parties do not factor anything

    return scipy.linalg.lapack


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    _lapack()  # only libraries that are loaded are found
    return ThreadpoolController().select(internal_api="openblas")
