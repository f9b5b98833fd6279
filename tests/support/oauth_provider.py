"""A loopback provider of OAuth 2 with PKCE, and of an API that its tokens and an API key open."""

from __future__ import annotations

import base64
import hashlib
import http.client
import secrets
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlencode, urlsplit

from support.loopback import LoopbackServer, RecordedRequest, send_json

CLIENT_ID, CLIENT_SECRET = "agent", "client-secret-4711"
API_KEY = "api-key-0815-very-secret"
REDIRECT_URI = "https://app.example/callback"


class OAuthProvider(LoopbackServer):
    """The provider.

    Attributes:
        tokens: Tokens that it has given.
        refused: Why it refused requests for a token.
        opened: How often its API answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.codes: list[str] = []
        self.refused: list[str] = []
        self.opened = 0
        self._open_codes: dict[str, dict[str, str]] = {}

    @property
    def authorize_url(self) -> str:
        """Where a user is sent to."""
        return f"{self.url}/authorize"

    @property
    def token_url(self) -> str:
        """Where a code is exchanged."""
        return f"{self.url}/token"

    @property
    def api_url(self) -> str:
        """What the credentials open."""
        return f"{self.url}/api"

    def consent(self, authorization_url: str) -> str:
        """What a user's browser does: the URL that the callback is called with."""
        # Not through a client that logs what it receives.
        parts = urlsplit(authorization_url)
        connection = http.client.HTTPConnection(parts.netloc)
        try:
            connection.request("GET", f"{parts.path}?{parts.query}")
            answer = connection.getresponse()
            assert answer.status == 302, answer.status
            return answer.headers["location"]
        finally:
            connection.close()

    def respond(
        self, handler: BaseHTTPRequestHandler, request: RecordedRequest, number: int
    ) -> None:
        """Answer by path."""
        path = urlsplit(request.path).path
        if path == "/authorize":
            self._authorize(handler, request)
        elif path == "/token":
            self._token(handler, request)
        else:
            self._api(handler, request)

    def _authorize(self, handler: BaseHTTPRequestHandler, request: RecordedRequest) -> None:
        asked = request.query
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        code = f"code-{secrets.token_hex(16)}"
        with self.lock:
            self.codes.append(code)
            self._open_codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        location = f"{asked['redirect_uri']}?{back}"
        send_json(handler, 302, {}, {"location": location})

    def _token(self, handler: BaseHTTPRequestHandler, request: RecordedRequest) -> None:
        refusal = self._refusal(request)
        if refusal:
            with self.lock:
                self.refused.append(refusal)
            body = {"error": "invalid_grant", "error_description": refusal}
            send_json(handler, 400, body, {})
            return
        token = f"token-{secrets.token_hex(16)}"
        with self.lock:
            self.tokens.append(token)
        body = {"access_token": token, "token_type": "Bearer"}
        send_json(handler, 200, {**body, "expires_in": 3_600}, {})

    def _refusal(self, request: RecordedRequest) -> str:
        form = request.form
        if form["grant_type"] == "client_credentials":
            known = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
            is_known = request.headers.get("Authorization") == f"Basic {known}"
            return "" if is_known else "unknown client"
        with self.lock:
            asked = self._open_codes.pop(form["code"], None)
        if asked is None:
            return "the code is not known, or was used"
        if form.get("redirect_uri") != asked["redirect_uri"]:
            return "another redirect URI"
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return "" if challenge == asked.get("code_challenge") else "the verifier does not fit"

    def _api(self, handler: BaseHTTPRequestHandler, request: RecordedRequest) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        keys = {
            request.headers.get("X-Api-Key"),
            *parse_qs(urlsplit(request.path).query).get("key", []),
        }
        is_open = token in self.tokens or API_KEY in keys
        with self.lock:
            self.opened += is_open
        send_json(handler, 200 if is_open else 401, {"balance": 42} if is_open else {}, {})
