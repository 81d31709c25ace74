"""An MCP server behind the SDK's own authorization server, in a thread: what it issues and takes is seen by tests."""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl


@dataclass
class Issuer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """An authorization server whose user agrees. Refresh tokens are good for one use, and their reuse is seen."""

    lifetime_s: int = 3600
    is_refusing: bool = False
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    refreshed: int = 0
    reused: int = 0
    revoked: list[str] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.is_refusing:
            return construct_redirect_uri(str(params.redirect_uri), error="access_denied", state=params.state)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, _client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, _client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issued(authorization_code)

    async def load_refresh_token(self, _client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self._used:
            self.reused += 1
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, _client: OAuthClientInformationFull, refresh_token: RefreshToken, _scopes: list[str]
    ) -> OAuthToken:
        if self.is_refusing:
            raise TokenError("invalid_grant", "the user has taken it back")
        del self.refresh[refresh_token.token]
        self._used.add(refresh_token.token)
        self.refreshed += 1
        return self._issued(refresh_token)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revoked.append(token.token)
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _issued(self, of: AuthorizationCode | RefreshToken) -> OAuthToken:
        common: dict[str, Any] = {"client_id": of.client_id, "scopes": of.scopes, "resource": of.resource}
        access, refresh = f"at-{secrets.token_urlsafe()}", f"rt-{secrets.token_urlsafe()}"
        self.access[access] = AccessToken(token=access, expires_at=int(time.time()) + 3600, **common)
        self.refresh[refresh] = RefreshToken(token=refresh, **common)
        scope = " ".join(of.scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime_s, scope=scope)


@dataclass(frozen=True)
class LoginSite:
    url: str
    issuer: Issuer


@contextmanager
def login_site() -> Iterator[LoginSite]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # a request that comes before the server has begun waits for it
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        issuer = Issuer()
        app = _Guard(_server(url, issuer).streamable_http_app())
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield LoginSite(f"{url}/mcp", issuer)
        finally:
            server.should_exit = True
            thread.join()


@dataclass(frozen=True)
class _Guard:
    """Refuses calls of the tool ``admin``, which takes a right that no token has (RFC 6750, 3.1)."""

    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-name", b"admin") not in scope.get("headers", ()):
            await self.app(scope, receive, send)
            return
        challenge = b'Bearer error="insufficient_scope", scope="files:write"'
        headers = [(b"www-authenticate", challenge), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _server(url: str, issuer: Issuer) -> MCPServer:
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(url),
        resource_server_url=AnyHttpUrl(f"{url}/mcp"),
        validate_token_resource=True,
        client_registration_options=ClientRegistrationOptions(enabled=True),
        revocation_options=RevocationOptions(enabled=True),
    )
    server = MCPServer("guarded", auth_server_provider=issuer, auth=settings)

    @server.tool()
    def repeat(ctx: Context) -> str:
        """Repeat the token by which the caller came."""
        headers = ctx.headers or {}
        return f"you came with {headers.get('authorization', 'nothing')}"

    @server.tool()
    def admin() -> str:
        """Do what nobody may."""
        return "done"

    @server.tool()
    async def wait(ctx: Context) -> str:
        """Say that it has begun, and end a moment later."""
        await ctx.report_progress(1, 2, "begun")
        await asyncio.sleep(1)
        return "waited"

    return server
