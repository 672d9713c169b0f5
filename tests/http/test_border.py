"""The border: ids on everything, keys, methods and paths, and the routes of operators."""

import asyncio

import pytest

from antiphon import ModelRoute, ServerOptions
from serving import serving

pytestmark = pytest.mark.anyio

KEYS = ServerOptions(api_keys=("first-key", "second-key"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/v1/responses/a/b/c", 404),
        ("GET", "/v1/responses/", 404),
        ("PUT", "/v1/responses", 405),
        ("PATCH", "/v1/responses/resp_1", 405),
        ("GET", "/v1/responses/resp_1/cancel", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
    ],
)
async def test_wrong_paths_and_methods_are_json_errors(method, path, status):
    """A 404 or 405 has the body of every other error, and a request id."""
    async with serving() as s:
        answer = await s.ask(method, path)
        assert answer.status == status
        assert answer.error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
        if status == 405:
            assert answer.headers["allow"]


async def test_every_answer_has_its_own_request_id():
    """Good answers, errors and streams carry an id, and no two the same."""
    async with serving(options=KEYS) as s:
        keyed = {"Authorization": "Bearer first-key"}
        made = await s.post({"model": "fake", "input": "hi"}, headers=keyed)
        answers = [
            made,
            await s.post({"model": "fake", "input": "hi", "stream": True}, headers=keyed),
            await s.post({"model": "fake"}),
            await s.get("/health"),
            await s.get("/metrics"),
            await s.get("/nothing", headers=keyed),
            await s.ask("PUT", "/v1/responses", headers=keyed),
            await s.ask("POST", "/v1/responses", data=b"{", headers=keyed),
        ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert all(len(answer.headers.getall("x-request-id")) == 1 for answer in answers)


async def test_keys_open_and_close():
    """With keys set, each opens every route; without one, or with another, the answer is 401."""
    async with serving(options=KEYS) as s:
        for key in ("first-key", "second-key"):
            answer = await s.post(
                {"model": "fake", "input": "hi"}, headers={"Authorization": f"Bearer {key}"}
            )
            assert answer.status == 200
        assert (await s.get("/v1/models", headers={"Authorization": "bearer first-key"})).status == 200
        for headers in (
            {},
            {"Authorization": "Bearer third-key"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer"},
            {"Authorization": "first-key"},
            {"Authorization": "Basic first-key"},
            {"Authorization": "Bearer first-key second-key"},
            {"Authorization": "Bearer first-ke"},
            {"Authorization": "Bearer schlüssel"},
        ):
            for method, path in (
                ("POST", "/v1/responses"),
                ("GET", "/v1/models"),
                ("GET", "/v1/responses/x"),
                ("GET", "/nothing"),
            ):
                answer = await s.ask(method, path, headers=headers)
                assert answer.status == 401, headers
                assert answer.error["type"] == "authentication_error"
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert "first-key" not in answer.raw.decode()
    assert len(s.upstream.requests) == 2


async def test_operators_routes_need_no_key():
    """Health, readiness and metrics answer everybody."""
    async with serving(options=KEYS) as s:
        assert (await s.get("/health")).json == {"status": "ok"}
        assert (await s.get("/readyz")).status == 200
        assert (await s.get("/metrics")).status == 200


async def test_metrics_count_what_happened():
    """The exposition is text for Prometheus, and a response shows in it."""
    async with serving() as s:
        await s.create({"input": "hi"})
        answer = await s.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    names = {line.split("{")[0].split(" ")[0] for line in answer.raw.decode().splitlines() if line[:1] != "#"}
    assert any(name.startswith("antiphon_") for name in names)


async def test_models_are_listed_and_found():
    """What the upstream lists is listed; one is found by name, an unknown one is 404."""
    async with serving() as s:
        listing = (await s.get("/v1/models")).json
        assert listing["object"] == "list"
        assert [model["id"] for model in listing["data"]] == ["fake"]
        assert listing["data"][0]["object"] == "model"
        assert isinstance(listing["data"][0]["created"], int)
        assert (await s.get("/v1/models/fake")).json == listing["data"][0]
        missing = await s.get("/v1/models/none")
        assert missing.status == 404
        assert missing.error["code"] == "model_not_found"


async def test_a_models_name_may_hold_slashes():
    """Names such as `org/model` are found."""
    models = {"org/model": ModelRoute(upstreams=("default",), model="fake")}
    async with serving(models=models, upstream="http://127.0.0.1:9/v1") as s:
        assert (await s.get("/v1/models/org/model")).json["id"] == "org/model"


async def test_readiness_fails_with_the_store(tmp_path):
    """A store that cannot be asked makes the server not ready, with a reason; health stays."""
    async with serving(store=f"sqlite:///{tmp_path / 'work.db'}") as s:
        assert (await s.get("/readyz")).status == 200
        await s.engine.store.close()
        answer = await s.get("/readyz")
        assert answer.status == 503
        assert answer.json["status"] == "not ready"
        assert (await s.get("/health")).status == 200
        await s.engine.store.open()
        assert (await s.get("/readyz")).status == 200


async def raw_exchange(served, request: bytes) -> bytes:
    """Bytes to the server as they are, and what comes back until it hangs up or is silent."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(65536), 5)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "headers",
    [
        b"x-stainless-retry-count: \xb2",
        b"x-stainless-retry-count: -1",
        b"x-stainless-retry-count: " + b"9" * 6000,
        b"x-stainless-retry-count: one",
        b"content-encoding: \xff\xfe",
        b"content-type: nonsense",
        b"x-antiphon-tools: \x80",
    ],
    ids=["superscript", "negative", "huge", "word", "encoding", "type", "tools"],
)
async def test_odd_headers_never_break_the_server(headers):
    """Whatever a header holds, the answer is an answer: 200 or a clear 4xx, never 500."""
    async with serving() as s:
        body = b'{"model":"fake","input":"hi"}'
        request = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n%b\r\ncontent-length: %d\r\n\r\n%b"
        answer = await raw_exchange(s, request % (headers, len(body), body))
        status = int(answer.split(b" ")[1])
        assert status == 200 or 400 <= status < 500, answer
        assert b"x-request-id" in answer.lower()
