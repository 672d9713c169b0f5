"""Model names and the servers behind them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon.domain.errors import (
    ConfigurationError,
    InferenceError,
    InvalidRequestError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)
from antiphon.domain.inference import InferenceEvent, InferenceFinished, InferenceRequest, TextDelta
from antiphon.upstream.routing import ModelRoute, Router

pytestmark = pytest.mark.anyio


class Server:
    """A client that fails as told, before or after its first event, and keeps what it was asked."""

    def __init__(
        self, *, fails: InferenceError | None = None, late: bool = False, models: list[str] | None = None
    ) -> None:
        self.fails = fails
        self.late = late
        self.listed = models
        self.asked: list[str] = []
        self.left = 0
        self.closed = 0

    async def call(self, request: InferenceRequest) -> AsyncIterator[InferenceEvent]:
        self.asked.append(request.model)
        try:
            if self.fails and not self.late:
                raise self.fails
            yield TextDelta(request.model)
            if self.fails:
                raise self.fails
            yield InferenceFinished()
        finally:
            self.left += 1

    async def models(self) -> list[str]:
        if self.listed is None:
            raise UpstreamUnreachableError("gone")
        return self.listed

    async def close(self) -> None:
        self.closed += 1


class Bare:
    """A client with nothing but `call`."""

    async def call(self, request: InferenceRequest) -> AsyncIterator[InferenceEvent]:
        yield InferenceFinished()


def asking(model: str) -> InferenceRequest:
    return InferenceRequest(model=model, input=[])


async def answer_of(router: Router, model: str) -> list[InferenceEvent]:
    async with asyncio.timeout(5):
        return [event async for event in router.call(asking(model))]


DOWN = UpstreamUnreachableError("down")


async def test_aliases_are_rewritten() -> None:
    """An alias is asked for under the name that its server knows."""
    server = Server()
    router = Router({"a": server}, {"fast": ModelRoute(("a",), "llama-8b"), "same": ModelRoute(("a",))})
    await answer_of(router, "fast")
    await answer_of(router, "same")
    assert server.asked == ["llama-8b", "same"]


async def test_star_passes_names_through() -> None:
    """What is no alias goes to the star's server under its own name; an alias goes before the star."""
    aliased, other = Server(), Server()
    router = Router({"a": aliased, "b": other}, {"*": ModelRoute(("b",)), "fast": ModelRoute(("a",), "x")})
    await answer_of(router, "fast")
    await answer_of(router, "anything/else")
    assert (aliased.asked, other.asked) == (["x"], ["anything/else"])


async def test_unknown_models_are_the_callers_mistake() -> None:
    """The error names what there is."""
    router = Router({"a": Server()}, {"fast": ModelRoute(("a",)), "slow": ModelRoute(("a",))})
    assert router.knows("fast")
    assert not router.knows("other")
    with pytest.raises(InvalidRequestError, match="fast, slow") as caught:
        await answer_of(router, "other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(InvalidRequestError):
        router.route("other")


async def test_the_next_server_is_asked() -> None:
    """A server that cannot be reached is passed over, and the reader does not notice."""
    first, second = Server(fails=DOWN), Server()
    router = Router({"a": first, "b": second}, {"m": ModelRoute(("a", "b"), "x")})
    assert await answer_of(router, "m") == [TextDelta("x"), InferenceFinished()]
    assert (first.left, second.left) == (1, 1)


async def test_the_last_error_is_told() -> None:
    """When all fail, the last one's error goes up."""
    last = UpstreamUnreachableError("also down")
    router = Router({"a": Server(fails=DOWN), "b": Server(fails=last)}, {"m": ModelRoute(("a", "b"))})
    with pytest.raises(UpstreamUnreachableError, match="also down"):
        await answer_of(router, "m")


async def test_no_failover_after_the_first_event() -> None:
    """Half an answer of one server is never continued by another."""
    second = Server()
    router = Router({"a": Server(fails=DOWN, late=True), "b": second}, {"m": ModelRoute(("a", "b"))})
    with pytest.raises(UpstreamUnreachableError):
        await answer_of(router, "m")
    assert second.asked == []


async def test_no_failover_for_what_would_fail_everywhere() -> None:
    """A refused request is refused; the next server is not asked the same."""
    second = Server()
    refused = UpstreamRefusedError("no", upstream_status=400, retryable=False)
    router = Router({"a": Server(fails=refused), "b": second}, {"m": ModelRoute(("a", "b"))})
    with pytest.raises(UpstreamRefusedError):
        await answer_of(router, "m")
    assert second.asked == []


async def test_star_looks_for_the_model_among_its_servers() -> None:
    """Where names are passed through, a server that does not know one is passed over."""
    unknown = UpstreamRefusedError("?", upstream_status=404, retryable=False, code="model_not_found")
    router = Router({"a": Server(fails=unknown), "b": Server()}, {"*": ModelRoute(("a", "b"))})
    assert await answer_of(router, "m") == [TextDelta("m"), InferenceFinished()]


async def test_leaving_reaches_the_server() -> None:
    """A reader that leaves in mid-answer closes the answer of whichever server gave it."""
    first, second = Server(fails=DOWN), Server()
    for order in (("a", "b"), ("b", "a")):
        events = Router({"a": first, "b": second}, {"m": ModelRoute(order)}).call(asking("m"))
        await anext(events)
        left = second.left
        await events.aclose()
        assert second.left == left + 1


async def test_models() -> None:
    """Aliases, then what the star's servers list; silent and unlisting servers are left out."""
    clients = {
        "a": Server(models=["x", "fast"]),
        "gone": Server(),
        "bare": Bare(),
        "b": Server(models=["y", "x"]),
    }
    routes = {"fast": ModelRoute(("a",)), "*": ModelRoute(("a", "gone", "bare", "b"))}
    assert await Router(clients, routes).models() == ["fast", "x", "y"]
    assert await Router(clients, {"fast": ModelRoute(("a",))}).models() == ["fast"]


async def test_close_reaches_every_client_once() -> None:
    """A client under two names is closed once, one that cannot be closed is left."""
    server = Server()
    await Router({"a": server, "b": server, "c": Bare()}, {}).close()
    assert server.closed == 1


@pytest.mark.parametrize("route", [ModelRoute(("nobody",)), ModelRoute(())])
async def test_routes_that_lead_nowhere(route: ModelRoute) -> None:
    """A typing error in the configuration is found at the start, not at the first request."""
    with pytest.raises(ConfigurationError, match="'m'"):
        Router({"a": Server()}, {"m": route})
