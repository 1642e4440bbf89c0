"""One loaded model that answers requests: small ones in batches with others, files and explanations on threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

import fedalign
from fedalign.errors import UserError
from fedalign.inference import explain, files
from fedalign.inference.finite import NotFiniteError
from fedalign.inference.model import Model
from fedalign.ingest.columns import Records
from fedalign.learning.scoring import CHUNK
from fedalign.serve import answers, bodies
from fedalign.serve.answers import Options, Prepared
from fedalign.serve.batching import Batcher, scores
from fedalign.serve.limits import Limits, Reason, Refused, check_deadline
from fedalign.system.cores import cores
from fedalign.types import take


class Service:
    """Predictions for the rows of one request. Every mistake in a request becomes `Refused`."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.reading = files.reading_of(model)
        self.batcher = Batcher(model)
        self.pool = ThreadPoolExecutor(cores(), "fedalign-file", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        self.batcher.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def about(self) -> dict[str, Any]:
        """What the model reads and predicts."""
        columns = self.reading.input.columns_of(self.reading)
        return {
            "fedalign": fedalign.__version__,
            "task": self.model.task,
            "kind": self.model.inputs.kind,
            "reads": {key: value for key, value in asdict(columns).items() if value},
            "label_names": self.model.label_names,
            "explains": explain.explains(self.model),
            "limits": asdict(self.limits),
        }

    async def of_json(self, body: bytes, options: Options, deadline: float) -> bytes:
        """The answer to a JSON body."""
        try:
            self.check(options)
            rows = bodies.parse_json(body, self.limits)
            if len(rows) > CHUNK or options.explain:
                return await self._on_thread(self._all_json, rows, options, deadline)
            part = answers.prepared(self.model, bodies.records_of_json(self.model, self.reading, rows))
            found: list[dict[str, Any]] = []
            if len(part.x):
                logits = await self.batcher.logits(part.x)
                found = answers.predictions(self.model, part, logits, options)
        except NotFiniteError as error:
            raise Refused(Reason.BAD_INPUT, str(answers.too_large(part.records, error))) from error
        except UserError as error:
            raise Refused(Reason.BAD_INPUT, str(error)) from error
        return bodies.as_json({"predictions": found, "skipped": part.skipped})

    async def of_file(self, body: bytes, ending: str, options: Options, deadline: float) -> bytes:
        """The answer to an uploaded file."""
        self.check(options)
        return await self._on_thread(self._all_of_file, body, ending, options, deadline)

    def check(self, options: Options) -> None:
        """Raises `Refused` if the model cannot answer with these options."""
        if options.threshold is not None and self.model.task == "single":
            raise Refused(Reason.BAD_INPUT, "threshold is for multi-label models; this one has one class per row")
        if options.explain and not explain.explains(self.model):
            raise Refused(
                Reason.BAD_INPUT, "this model does not say what decided; train it with algorithm.name = 'analytic'"
            )

    # --- on a thread ----------------------------------------------------------------------------------------------

    async def _on_thread(self, work: Any, *arguments: Any) -> bytes:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)
        except UserError as error:
            raise Refused(Reason.BAD_INPUT, str(error)) from error

    def _all_json(self, rows: list[Any], options: Options, deadline: float) -> bytes:
        check_deadline(deadline, self.limits)
        return self._all([bodies.records_of_json(self.model, self.reading, rows)], options, deadline)

    def _all_of_file(self, body: bytes, ending: str, options: Options, deadline: float) -> bytes:
        check_deadline(deadline, self.limits)  # it may have waited for a thread
        return self._all(bodies.records_of_file(body, ending, self.reading, self.limits, deadline), options, deadline)

    def _all(self, batches: list[Records], options: Options, deadline: float) -> bytes:
        count = sum(map(len, batches))
        if options.explain and count > self.limits.explained:
            raise Refused(
                Reason.TOO_LARGE,
                f"the request has {count:,} rows and asks what decided; send at most {self.limits.explained}",
            )
        found: list[dict[str, Any]] = []
        skipped: list[int] = []
        for records in batches:
            part = answers.prepared(self.model, records)
            skipped += part.skipped
            for first in range(0, len(part.records), CHUNK):
                check_deadline(deadline, self.limits)
                found += self._some(part, first, options, deadline)
        return bodies.as_json({"predictions": found, "skipped": skipped})

    def _some(self, part: Prepared, first: int, options: Options, deadline: float) -> list[dict[str, Any]]:
        """Predictions for the next rows, few enough to look at the clock between two calls."""
        chosen = np.arange(first, min(first + CHUNK, len(part.records)))
        some = Prepared(part.records.take(chosen), take(part.x, torch.from_numpy(chosen)), ())
        [logits] = scores(self.model, [some.x])
        if isinstance(logits, NotFiniteError):
            raise answers.too_large(some.records, logits) from logits
        if isinstance(logits, BaseException):
            raise logits
        found = answers.predictions(self.model, some, logits, options)
        if options.explain:
            answers.add_reasons(self.model, some, found, options.explain, self.limits, deadline)
        return found
