"""POST /predict: from the bytes of a request to the bytes of its answer.

It is an ASGI application of its own, because FastAPI's routing costs as much as the forward pass of a small model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from fedalign.errors import quoted
from fedalign.serve import bodies
from fedalign.serve.answers import Options
from fedalign.serve.guard import Receive, Scope, Send, answer, send_json, too_many_bytes
from fedalign.serve.limits import Limits, Reason, Refused
from fedalign.serve.service import Service

DEFAULTS = Options()
OPTIONS = TypeAdapter(Options)
FORM = "multipart/form-data"


class Predict:
    """Answers requests with a service. The time limit holds for the whole request, also for a slow sender."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self.service.limits
        deadline = limits.deadline()
        arrived = False
        try:
            async with asyncio.timeout(limits.seconds):
                options = options_of(scope["query_string"])
                body = await read_body(receive, limits)
                arrived = True
                content = await self.answer(scope, body, options, deadline)
        except TimeoutError:
            if arrived:
                refused = Refused(Reason.TIMEOUT, f"no answer within {limits.seconds:g} seconds; send fewer rows")
            else:
                refused = Refused(Reason.TOO_SLOW_TO_SEND, "the body did not arrive in time; send it faster")
            await answer(send, refused)
        except Refused as refused:
            await answer(send, refused)
        else:
            await send_json(send, 200, content)

    async def answer(self, scope: Scope, body: bytes, options: Options, deadline: float) -> bytes:
        """Predictions as JSON."""
        named = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        kind = named.partition(";")[0].strip().lower()
        if kind == bodies.JSON:
            return await self.service.of_json(body, options, deadline)
        content, ending = await upload(Headers(scope=scope), kind, body, self.service.model.inputs.opens_files)
        return await self.service.of_file(content, ending, options, deadline)


def options_of(query: bytes) -> Options:
    """The options in the address of a request."""
    if not query:
        return DEFAULTS
    try:
        return OPTIONS.validate_python(dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)))
    except ValidationError as error:
        first = error.errors()[0]
        message = f"the option {quoted(first['loc'][0])} is wrong: {first['msg'].lower()}; see /docs"
        raise Refused(Reason.BAD_INPUT, message) from error
    except ValueError as error:  # far too many options
        raise Refused(Reason.BAD_REQUEST, "the options in the address cannot be read; see /docs") from error


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """The whole body; refused as soon as it is too large, whatever size it announced."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(Reason.BAD_REQUEST, "the connection was closed before the body was complete; send it again")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > limits.bytes:
            raise too_many_bytes(limits)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def upload(headers: Headers, kind: str, body: bytes, images: bool) -> tuple[bytes, str]:
    """The content of an uploaded file and the ending of its name: the only file of a form, or the body itself."""
    if kind != FORM:
        return body, bodies.ending_of(kind, None, images)

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(headers, stream(), max_files=1, max_fields=8).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", str(error))
        raise Refused(Reason.BAD_REQUEST, f"the form cannot be read ({reason}); send one file in it") from error
    try:
        files = [value for _, value in form.multi_items() if not isinstance(value, str)]
        if not files:
            raise Refused(Reason.BAD_INPUT, "the form holds no file; send one, for example curl -F file=@rows.csv")
        return await files[0].read(), bodies.ending_of("", files[0].filename or "", images)
    finally:
        await form.close()
