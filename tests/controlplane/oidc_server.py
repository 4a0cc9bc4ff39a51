"""A provider of OpenID Connect as a process of its own: ``python -m tests.controlplane.oidc_server``.

It prints its address, signs tokens with a key of RSA, checks the client's secret and the proof of PKCE, takes a code
once, and says of whoever comes what was last put at ``/claims``. Whoever comes consents at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "switchyard", "a secret of the client"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider(BaseHTTPRequestHandler):
    """One request."""

    claims: dict[str, Any] = {"sub": "42"}
    # What the token says instead, where it is to differ from what the address for user information says.
    of_token: dict[str, Any] = {}
    codes: dict[str, dict[str, str]] = {}
    tokens: set[str] = set()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/.well-known/openid-configuration":
                pages = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
                pages |= {"userinfo_endpoint": "userinfo"}
                told = {name: f"{self.issuer}/{page}" for name, page in pages.items()}
                self.tell(
                    told | {"issuer": self.issuer, "token_endpoint_auth_methods_supported": ["client_secret_post"]}
                )
            case "/authorize":
                code = secrets.token_urlsafe(16)
                self.codes[code] = asked
                to = f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
                self.send_response(302)
                self.send_header("Location", to)
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "/keys":
                key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
                self.tell({"keys": [{**key, "kid": "1", "alg": "RS256", "use": "sig"}]})
            case "/userinfo":
                known = self.headers.get("Authorization", "").removeprefix("Bearer ") in self.tokens
                self.tell(self.claims if known else {"error": "invalid_token"}, 200 if known else 401)
            case _:
                self.tell({}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/claims":
            told = json.loads(body)
            Provider.claims, Provider.of_token = told["claims"], told.get("of_token", {})
            self.tell({})
            return
        sent = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        asked = self.codes.pop(sent.get("code", ""), None)
        proof = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        is_right = asked is not None and (sent.get("client_id"), sent.get("client_secret")) == (CLIENT, SECRET)
        if not is_right or asked["code_challenge"] != base64.urlsafe_b64encode(proof).decode().rstrip("="):
            self.tell({"error": "invalid_grant"}, 400)
            return
        token = secrets.token_urlsafe(16)
        self.tokens.add(token)
        now = int(time.time())
        said = self.claims | {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 60} | self.of_token
        id_token = jwt.encode(said, KEY, algorithm="RS256", headers={"kid": "1"})
        self.tell({"access_token": token, "token_type": "Bearer", "expires_in": 60, "id_token": id_token})

    def tell(self, what: Any, status: int = 200) -> None:
        content = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()
