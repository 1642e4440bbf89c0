"""The application: predictions, health, what the model reads, and two pages that need no other host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files as resources
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

import fedalign
from fedalign.inference.model import Model
from fedalign.serve import bodies
from fedalign.serve.guard import Guard
from fedalign.serve.limits import Limits, Reason, Refused, error_body
from fedalign.serve.openapi import ABOUT, NO_TOKEN, with_predict
from fedalign.serve.predict import Predict
from fedalign.serve.service import Service

STATIC = {  # address -> file, content type
    "/": ("page.html", "text/html; charset=utf-8"),
    "/docs": ("reference.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/reference.js": ("reference.js", "text/javascript; charset=utf-8"),
}


class Application(Guard):
    """One model behind its guard: an ASGI application for uvicorn or another server."""

    def __init__(self, app: FastAPI, service: Service, token: str | None, loopback: bool) -> None:
        super().__init__(app, {("POST", "/predict"): Predict(service)}, service.limits, token, loopback)
        self.service = service


def create_app(
    model: Model, limits: Limits | None = None, token: str | None = None, loopback: bool = True
) -> Application:
    """The application for one model."""
    service = Service(model, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="fedalign",
        version=fedalign.__version__,
        description=ABOUT,
        docs_url=None,  # its page asks other hosts for scripts
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    _errors(app)
    _routes(app, service)
    _pages(app)
    return Application(app, service, token, loopback)


def _routes(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Whether the server answers")
    async def health() -> dict[str, str]:
        return {"status": "ok", "fedalign": fedalign.__version__}

    @app.get("/model", summary="What the model reads and predicts", responses=NO_TOKEN)
    async def model() -> dict[str, Any]:
        return service.about()

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return with_predict(app.openapi(), service.model.inputs)


def _pages(app: FastAPI) -> None:
    for address, (name, kind) in STATIC.items():
        content = resources("fedalign.serve").joinpath(name).read_bytes()

        def page(request: Request, content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind)

        app.add_route(address, page)


def _errors(app: FastAPI) -> None:
    """Every error is the same small JSON."""

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code == Reason.NOT_FOUND.status and request.url.path != "/predict":
            found = Refused(Reason.NOT_FOUND, "there is no such address; see /docs")
        else:
            found = Refused(Reason.WRONG_METHOD, "this address needs another method; see /docs")
        return Response(found.body, found.reason.status, media_type=bodies.JSON)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        body = error_body("internal", "the server failed; its log says why")
        return Response(body, 500, media_type=bodies.JSON)
