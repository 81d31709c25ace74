"""Signing in: a browser puts a secret of its own in the place of the code that `soong console` showed it."""

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.http.context import api_of
from soong.orchestrator.http.schemas import CallerSchema, respond
from soong.orchestrator.http.service_routes import caller_document
from soong.orchestrator.http.strict import Body, StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["service"])


class SignInBody(Body):
    code: str = Field(max_length=200, description="What `soong console` put behind the `#` of the address.")
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256, in hexadecimal, of a secret of the caller's: 32 random bytes as base64url.",
    )


@router.post("/v1/sign-in", response_model=CallerSchema)
async def sign_in(request: Request, body: SignInBody) -> Response:
    """Turn a code into a token, once. Needs no token.

    The token's text is `soong_`, the `token` of the answer, `_`, and the secret, which is never sent here. The code is
    worth nothing afterwards, and after a minute.
    """
    address = request.client.host if request.client is not None else ""
    caller = await api_of(request).authenticator.sign_in(body.code, body.digest, address)
    return respond(caller_document(caller))
