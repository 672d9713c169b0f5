"""A running server, as the command line talks to it.

On the standard library's HTTP client: a command that asks one question should not take longer to start
than the answer takes. Whatever goes wrong ends the command with one paragraph (`CommandFailed`).
"""

import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

from cyclopts import Parameter

from antiphon.cli.failure import USAGE, CommandFailed

DEFAULT_URL = "http://127.0.0.1:8080"

JSONObject = dict[str, Any]

_ANSWER_WITHIN_S = 30.0
_SILENCE_S = 60.0  # a server sends a keepalive every 15 s
_ERROR_STATUS = 400
_UNAUTHORIZED = 401
_MOST_CANDIDATES = 10
_CHUNK_BYTES = 65536


class ConnectionLostError(Exception):
    """A stream ended in the middle, or no connection could be made."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Which server, and as whom."""

    url: Annotated[str, Parameter(env_var="ANTIPHON_URL", help="The server's address.")] = DEFAULT_URL
    api_key: Annotated[str | None, Parameter(env_var="ANTIPHON_API_KEY", help="The key to send.")] = None


class Server:
    """The HTTP API of one server."""

    def __init__(self, flags: ServerFlags | None = None) -> None:
        flags = flags or ServerFlags(
            url=os.environ.get("ANTIPHON_URL") or DEFAULT_URL, api_key=os.environ.get("ANTIPHON_API_KEY")
        )
        self.url = flags.url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandFailed(f"--url {flags.url}: write an address such as {DEFAULT_URL}.", USAGE)
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {flags.api_key}"} if flags.api_key else {}

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at a path; parameters that are None are left out."""
        return self._json("GET", path, query)

    def post(self, path: str) -> Any:
        """The JSON answer to a POST without a body."""
        return self._json("POST", path, {})

    def resolve(self, prefix: str) -> str:
        """The id of the one response whose id begins with this, with or without `resp_`."""
        found = self.get("/v1/responses", prefix=prefix, limit=_MOST_CANDIDATES + 1)["data"]
        ids = [response["id"] for response in found]
        if exact := [each for each in ids if prefix in (each, each.removeprefix("resp_"))]:
            return str(exact[0])
        match ids:
            case []:
                raise CommandFailed(
                    f"No response at {self.url} has an id that begins with {prefix!r}. "
                    "`antiphon responses ls` lists them."
                )
            case [only]:
                return str(only)
            case _:
                shown = "\n".join(
                    f"  {each['id']}  {each.get('status', '')}" for each in found[:_MOST_CANDIDATES]
                )
                more = "\n  …" if len(found) > _MOST_CANDIDATES else ""
                raise CommandFailed(
                    f"{prefix!r} fits several responses; give more of the id:\n{shown}{more}", USAGE
                )

    def events(self, response_id: str, starting_after: int | None) -> Iterator[JSONObject]:
        """The events of a response as they come, from behind a sequence number on.

        Raises `ConnectionLostError` when the connection breaks; ends where the stream ends.
        """
        from antiphon.core.sse import SseSplitter

        query = {"stream": "true", "starting_after": starting_after}
        connection = self._connect(_SILENCE_S)
        try:
            answer = self._ask(connection, "GET", _with_query(path_of(response_id), query))
            if answer.status >= _ERROR_STATUS:
                raise self._refusal(answer.status, answer.read())
            splitter = SseSplitter()
            while chunk := answer.read1(_CHUNK_BYTES):
                for data in splitter.feed(chunk):
                    if data != b"[DONE]":
                        yield json.loads(data)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(str(error)) from error
        finally:
            connection.close()

    def _json(self, method: str, path: str, query: JSONObject) -> Any:
        connection = self._connect(_ANSWER_WITHIN_S)
        try:
            answer = self._ask(connection, method, _with_query(path, query))
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(self._unreachable(error)) from error
        finally:
            connection.close()
        if answer.status >= _ERROR_STATUS:
            raise self._refusal(answer.status, body)
        try:
            return json.loads(body)
        except ValueError as error:
            raise CommandFailed(
                f"{self.url} answered, but not with JSON: is it an Antiphon server? Name another with --url."
            ) from error

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=timeout_s)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, target: str
    ) -> http.client.HTTPResponse:
        connection.request(method, self._parts.path + target, headers=self._headers)
        return connection.getresponse()

    def _unreachable(self, error: Exception) -> str:
        return (
            f"No server answers at {self.url} ({error}). Start one with `antiphon serve` or `antiphon dev`, "
            "or name another with --url or ANTIPHON_URL."
        )

    def _refusal(self, status: int, body: bytes) -> CommandFailed:
        if status == _UNAUTHORIZED:
            return CommandFailed(
                f"{self.url} wants an API key, or another one: give it with --api-key or ANTIPHON_API_KEY."
            )
        try:
            message = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = f"status {status}; is it an Antiphon server? Name another with --url"
        return CommandFailed(f"{self.url} answered: {str(message).rstrip('.')}.")


def path_of(response_id: str, below: str = "") -> str:
    """The path of a response, or of what stands below it."""
    return f"/v1/responses/{quote(response_id, safe='')}{below}"


def _with_query(path: str, query: JSONObject) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
