"""The application: every route, its problems, its description; and the gate around them."""

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.http import console_files
from soong.orchestrator.http.console_files import PAGE_POLICY, front_page
from soong.orchestrator.http.edge import EdgeMiddleware, RequestPolicy, TokenCallers
from soong.orchestrator.operations import approvals, plans, progress, runs, service, sessions, tasks
from soong.orchestrator.operations.authentication import Peers
from soong.orchestrator.operations.context import Needs, ServiceParts
from soong.orchestrator.operations.documents import json_bytes
from soong.orchestrator.operations.problems import MEDIA_TYPE, ProblemCode, ProblemSchema, add_handlers
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.permissions.access.token import Right

if TYPE_CHECKING:
    from soong.orchestrator.http.mcp_endpoint import McpEndpoint

DESCRIPTION: Final = """Sessions, tasks, runs and permission questions of one deployment.

A token (`soong tokens create`) is sent as `Authorization: Bearer soong_tok_…`, never in an address. One deployment is
one tenant: a token with `read` sees all of it. Bodies are strict JSON: unknown fields, duplicate keys and NaN are
refused. Problems are RFC 9457 documents with a stable `code`."""

_ROUTERS: Final = (service, sessions, plans, tasks, progress, runs, approvals, console_files)


def make_app(parts: ServiceParts, borders: RequestPolicy, mcp: "McpEndpoint") -> EdgeMiddleware:
    """Return what is served. ``parts`` are closed by its creator; ``mcp`` serves while it runs."""
    callers = TokenCallers(parts.authenticator, Peers(parts.store.sessions))
    return EdgeMiddleware(mcp, borders, callers, parts.limits, parts.requests)


def make_routes(parts: ServiceParts) -> FastAPI:
    """Return the application behind the edge: every route, without the checks of who may come in."""
    app = _routes()
    app.state.service = parts
    add_handlers(app)
    return app


def description() -> dict[str, Any]:
    """Return the OpenAPI document; the same whatever serves it."""
    return _describe(_routes())


def right_of(route: APIRoute) -> Right | None:
    """Return the right that a route needs; None when it needs no token."""
    needs = [one.call for one in route.dependant.dependencies if isinstance(one.call, Needs)]
    return needs[0].right if needs else None


def routes_of(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute)]


def _routes() -> FastAPI:
    app = FastAPI(
        title="Soong",
        version=version(DISTRIBUTION),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for module in _ROUTERS:
        app.router.routes.extend(module.router.routes)  # as they are: each is asked what it needs

    @app.get("/v1/openapi.json", tags=["service"], response_class=Response)
    async def openapi(_request: Request) -> Response:
        """Describe this API (OpenAPI 3.1). Needs no token."""
        return Response(json_bytes(_describe(app)), media_type="application/json")

    @app.get(
        "/api",
        tags=["service"],
        response_class=Response,
        responses={200: {"content": {"text/html": {}}, "description": "A page of HTML."}},
    )
    async def front(request: Request) -> Response:
        """Say what this is and how to get a token, for people with a browser. Needs no token."""
        page = front_page(_describe(app), request.headers["host"])
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get(
        "/docs",
        tags=["service"],
        status_code=307,
        response_class=Response,
        responses={307: {"description": "Go to `/api`."}},
    )
    async def docs() -> Response:
        """Lead to the page at `/api`. Needs no token."""
        return Response(status_code=307, headers={"Location": "/api"})

    return app


def _describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = ProblemSchema.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schemas["Problem"].pop("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["x-problems"] = {str(code): {"status": code.status, "says": code.meaning} for code in ProblemCode}
    for route in routes_of(app):
        for method in route.methods or ():
            _describe_operation(document["paths"][route.path][method.lower()], route)
    # ``Session`` for what is called ``SessionSchema`` among classes.
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        plain = name.replace("Schema_", "_").removesuffix("Schema")
        text = text.replace(f'"{name}"', f'"{plain}"').replace(f'/schemas/{name}"', f'/schemas/{plain}"')
    renamed: dict[str, Any] = json.loads(text)
    return renamed


def _describe_operation(operation: dict[str, Any], route: APIRoute) -> None:
    """Say which right an operation needs and how it is refused."""
    right = right_of(route)
    operation["security"] = [{"token": []}] if right is not None else []
    operation["x-right"] = None if right is None else str(right)
    operation["operationId"] = route.name
    responses = operation["responses"]
    responses.pop("422", None)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, said in list(responses.items()):
        if status.startswith("4"):
            said["content"] = content
    responses["default"] = {"description": "A problem (RFC 9457).", "content": content}
