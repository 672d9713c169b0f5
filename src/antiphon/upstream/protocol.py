"""The seam between the loop and model servers."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from antiphon.domain.inference import InferenceEvent, InferenceRequest


class UpstreamTarget(msgspec.Struct, frozen=True):
    """Where a model server is: `endpoint` (scheme, host, port), `path`, and an API key.

    An empty or missing key sends no Authorization header.
    """

    endpoint: str
    path: str = "/v1/chat/completions"
    api_key: str | None = None

    @property
    def url(self) -> str:
        """The whole address."""
        return self.endpoint.rstrip("/") + "/" + self.path.lstrip("/")


class InferenceClient(Protocol):
    """One model call at a time. Safe for many tasks at once."""

    def call(self, request: InferenceRequest) -> AsyncIterator[InferenceEvent]:
        """Ask the model and yield its answer, ending with exactly one `InferenceFinished`.

        With `request.stream` pieces come as they arrive; without it each part comes whole. Transient
        failures before the first event are retried inside, with one policy. Raises `InferenceError`;
        its `torn` is true when events had been yielded before.
        """
        ...
