"""What the composable step functions work with."""

import os
import time

from antiphon.domain.ids import time_ordered_id
from antiphon.domain.tools import RequestContext
from antiphon.engine.protocol import LoopConfig
from antiphon.store.protocol import ResponseStore
from antiphon.tools.protocol import NoOpToolExecutor, ToolExecutor
from antiphon.upstream.protocol import InferenceClient


def new_id(prefix: str) -> str:
    """A new id: the time and 80 random bits."""
    return time_ordered_id(prefix, time.time(), os.urandom(10))


class ExecutionContext:
    """A store, an inference client, tools and limits: open for additions of your own by subclassing."""

    def __init__(
        self,
        store: ResponseStore,
        inference: InferenceClient,
        tools: ToolExecutor | None = None,
        config: LoopConfig | None = None,
        *,
        request_context: RequestContext | None = None,
    ) -> None:
        self.store = store
        self.inference = inference
        self.tools = tools or NoOpToolExecutor()
        self.config = config or LoopConfig()
        self.request_context = request_context or RequestContext()
        self.new_id = new_id
