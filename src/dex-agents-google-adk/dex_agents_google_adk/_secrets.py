"""Keep what a Step has resolved out of everything that leaves it."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

from google.adk.auth.auth_credential import AuthCredential

from dex_agents._contract import Json, ToolExecutionResult
from dex_agents._errors import ToolExecutionError, ToolNotStartedError
from dex_agents_google_adk._json import to_json

_LOGGER = logging.getLogger("dex_agents_google_adk")
HIDDEN = "***"
_SHORTEST = 6
"""Shorter texts are no secrets, and would be found where they mean something else."""
_OAUTH2_SECRETS = (
    "client_secret",
    "auth_response_uri",
    "auth_code",
    "access_token",
    "refresh_token",
    "id_token",
    "code_verifier",
)


class Secrets:
    """Texts that must not get out."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, credential: AuthCredential) -> None:
        """Remember every secret of a credential."""
        texts = (text for text in _texts_of(credential) if len(text) >= _SHORTEST)
        found = {form for text in texts for form in _forms(text)}
        # The longest first, so that none is left over from a part of another.
        self._texts = sorted({*self._texts, *found}, key=len, reverse=True)

    def are_in(self, value: Any) -> bool:
        """Whether any of them stands anywhere in a value."""
        if not self._texts:
            return False
        shown = to_json(value)
        return bool(self.hide(shown) != shown)

    def hide(self, value: Json) -> Json:
        """A JSON value without them."""
        if not self._texts:
            return value
        if isinstance(value, str):
            for secret in self._texts:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def hide_in_result(self, result: ToolExecutionResult) -> ToolExecutionResult:
        """The result of a Step without them."""
        if not self._texts:
            return result
        asked = result.interrupt
        if asked is not None:
            asked = replace(
                asked,
                hint=self.hide(asked.hint),
                payload=self.hide(asked.payload),
                framework_data=self.hide(asked.framework_data),
            )
        return replace(
            result,
            output=self.hide(result.output),
            framework_data=self.hide(result.framework_data),
            interrupt=asked,
        )

    def hide_error(self, error: BaseException) -> BaseException:
        """The error itself, or in its place one without them if its report shows any."""
        if not self._texts or not self.are_in("".join(traceback.format_exception(error))):
            return error
        text = self.hide(str(error))
        if isinstance(error, (ToolExecutionError, ToolNotStartedError)):
            return type(error)(text)
        return ToolError(f"{type(error).__name__}: {text}", getattr(error, "retry_after_s", None))

    def without_credentials(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """State changes that may be stored.

        Tools and ADK itself keep credentials in session state; whatever holds one is left out.
        """
        credentials = {k: v for k, v in state.items() if isinstance(v, AuthCredential)}
        for credential in credentials.values():
            self.add(credential)
        kept = {k: v for k, v in state.items() if k not in credentials and not self.are_in({k: v})}
        # ADK's own are in "temp:" keys; a tool that put one elsewhere will miss it.
        if lost := sorted(key for key in set(state) - set(kept) if not key.startswith("temp:")):
            _LOGGER.warning("not stored, as it holds a credential: session state %s", lost)
        return kept


class ToolError(Exception):
    """What a tool raised, without the secrets that its report had.

    Args:
        text: Type and text of the tool's exception.
        retry_after_s: Seconds that it asked to wait before a retry.
    """

    def __init__(self, text: str, retry_after_s: float | None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


def _forms(text: str) -> set[str]:
    """A secret as it is, and as requests, JSON in JSON and Basic headers would show it."""
    forms = {text, quote(text, safe=""), quote_plus(text)}
    for ensure_ascii in (True, False):
        once = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=ensure_ascii)[1:-1]}
    return forms | _base64_forms(text.encode("utf-8", "surrogatepass"))


def _base64_forms(data: bytes) -> set[str]:
    """What base64 of anything that holds ``data`` shows of it, at each of three places."""
    forms = set()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        # The first and last characters depend on what stands around it.
        first = (before * 8 + 5) // 6
        whole = (before + len(data)) * 8 // 6
        if whole - first >= _SHORTEST:
            inside = encoded[first:whole]
            forms |= {inside, inside.translate(_URL_SAFE)}
    return forms


_URL_SAFE = str.maketrans("+/", "-_")


def _texts_of(credential: AuthCredential) -> list[str]:
    texts: list[Any] = [credential.api_key]
    if (http := credential.http) is not None:
        texts += [http.credentials.password, http.credentials.token]
        texts += (http.additional_headers or {}).values()
    if (oauth2 := credential.oauth2) is not None:
        texts += [getattr(oauth2, name) for name in _OAUTH2_SECRETS]
        if oauth2.auth_response_uri:
            texts += parse_qs(urlsplit(oauth2.auth_response_uri).query).get("code", ())
    account = credential.service_account
    if account is not None and account.service_account_credential is not None:
        texts.append(account.service_account_credential.private_key)
    return [text for text in texts if isinstance(text, str)]
