"""Which model server is asked: single addresses, routes, and what is refused."""

from pathlib import Path

import pytest

from antiphon.cli.checks import check, leads_to_self, routes
from antiphon.cli.failure import CommandFailed
from antiphon.cli.flags import Flags
from antiphon.cli.loading import load
from antiphon.domain.errors import ConfigurationError

FILE = """\
upstreams:
  default: {url: "http://file:8000/v1", api_key: from-file}
models:
  "*": {upstream: default, model: qwen3, tools: [refund]}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def key_of(settings, name: str = "default") -> str | None:
    key = settings.upstreams[name].api_key
    return key.get_secret_value() if key else None


@pytest.mark.parametrize(
    ("argument", "environ", "url", "key"),
    [
        ("http://a/v1", {}, "http://a/v1", None),
        ("http://a/v1", {"OPENAI_API_KEY": "o"}, "http://a/v1", "o"),
        ("http://a/v1", {"OPENAI_API_KEY": "o", "ANTIPHON_UPSTREAM_API_KEY": "u"}, "http://a/v1", "u"),
        ("http://a/v1", {"ANTIPHON_UPSTREAM": "http://b/v1"}, "http://a/v1", None),
        (None, {"ANTIPHON_UPSTREAM": "http://b/v1", "OPENAI_API_KEY": "o"}, "http://b/v1", None),
        (None, {"ANTIPHON_UPSTREAM": "http://b/v1", "ANTIPHON_UPSTREAM_API_KEY": "u"}, "http://b/v1", "u"),
        (None, {"OPENAI_BASE_URL": "http://c/v1", "OPENAI_API_KEY": "o"}, "http://c/v1", "o"),
        (None, {"OPENAI_BASE_URL": "http://c/v1", "ANTIPHON_UPSTREAM": "http://b/v1"}, "http://b/v1", None),
    ],
)
def test_one_upstream_by_address(argument, environ, url, key):
    """Argument, ANTIPHON_UPSTREAM, OPENAI_BASE_URL, in this order, each with the key that belongs to it."""
    settings = load(Flags(upstream_url=argument), environ).settings
    assert settings.upstreams["default"].url == url
    assert key_of(settings) == key
    assert settings.models["*"].upstream == ("default",)


def test_an_argument_replaces_the_files_upstream_and_its_key(directory):
    """A key meant for one server is not sent to another that happens to bear the same name."""
    (directory / "antiphon.yaml").write_text(FILE)
    settings = load(Flags(upstream_url="http://other/v1"), {}).settings
    assert settings.upstreams["default"].url == "http://other/v1"
    assert key_of(settings) is None
    assert settings.models["*"].model is None
    assert settings.models["*"].tools == ("refund",)


def test_the_clients_variable_does_not_override_the_file(directory):
    """OPENAI_BASE_URL is set for clients on many machines; it only steps in where nothing is configured."""
    (directory / "antiphon.yaml").write_text(FILE)
    settings = load(Flags(), {"OPENAI_BASE_URL": "http://c/v1"}).settings
    assert settings.upstreams["default"].url == "http://file:8000/v1"


def test_a_single_upstream_needs_no_route(directory):
    """With one upstream, every model name leads to it."""
    (directory / "antiphon.yaml").write_text('upstreams: {vllm: {url: "http://x/v1"}}\n')
    configuration = load(Flags(), {})
    check(configuration)
    assert routes(configuration.settings)["*"].upstream == ("vllm",)


def test_routes_that_are_written_are_all_there_are(directory):
    """With routes of one's own nothing else is let through to the only upstream."""
    text = 'upstreams: {vllm: {url: "http://x/v1"}}\nmodels: {sums: {upstream: vllm}}\n'
    (directory / "antiphon.yaml").write_text(text)
    assert list(routes(load(Flags(), {}).settings)) == ["sums"]


def test_no_upstream_names_all_the_ways():
    """Exit 3, with every way to give one."""
    with pytest.raises(CommandFailed) as caught:
        check(load(Flags(), {}))
    assert caught.value.exit_code == 3
    for way in ("as an argument", "`upstreams:`", "ANTIPHON_UPSTREAM", "OPENAI_BASE_URL", "antiphon dev"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('upstreams: {a: {url: "http://x"}, b: {url: "http://y"}}\n', r"several upstreams \(a, b\) and no route"),
        ('upstreams: {a: {url: "http://x"}}\nmodels:\n  m: {upstream: b}\n', r"antiphon\.yaml:3: models\.m\.upstream: there is no upstream 'b'; there is a\."),
        ('upstreams: {a: {url: "http://x"}}\nmodels: {m: {upstream: []}}\n', r"models\.m\.upstream: it is empty"),
        ('upstreams: {a: {url: "http://x", api: responses}}\n', r"upstreams\.a\.api: `responses` is not available in this version; use `chat`"),
        ('upstreams: {a: {url: "http://localhost:8080/v1"}}\n', r"antiphon\.yaml:1: upstreams\.a\.url: http://localhost:8080/v1 is the address this server itself"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(directory, text, message):
    """Routes to nowhere, protocols that are not there yet, and a server that would ask itself."""
    (directory / "antiphon.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        check(load(Flags(), {}))


@pytest.mark.parametrize(
    ("url", "host", "port", "expected"),
    [
        ("http://localhost:8080/v1", "127.0.0.1", 8080, True),
        ("http://127.0.0.1:8080/v1", "localhost", 8080, True),
        ("http://[::1]:8080/v1", "127.0.0.1", 8080, True),
        ("http://0.0.0.0:8080/v1", "127.0.0.1", 8080, True),
        ("http://LOCALHOST:8080/v1", "0.0.0.0", 8080, True),
        ("http://10.0.0.5:8080/v1", "10.0.0.5", 8080, True),
        ("http://localhost/v1", "127.0.0.1", 80, True),
        ("http://localhost:8000/v1", "127.0.0.1", 8080, False),
        ("http://localhost:8080/v1", "10.0.0.5", 8080, False),
        ("http://models:8080/v1", "0.0.0.0", 8080, False),
        ("http://localhost:8080/v1", "127.0.0.1", 0, False),
    ],
)
def test_a_loop_to_ourselves_is_seen_under_every_name(url, host, port, expected):
    """localhost, 127.0.0.1, ::1 and 0.0.0.0 are one place; another port or machine is not."""
    assert leads_to_self(url, host, port) is expected


def test_listening_beyond_this_machine_needs_keys():
    """Without keys only loopback, unless --insecure says that it is meant."""
    exposed = {"upstream_url": "http://x/v1", "host": "0.0.0.0"}
    with pytest.raises(
        ConfigurationError, match=r"--host: server\.host: listening on 0\.0\.0\.0 .* --insecure"
    ):
        check(load(Flags(**exposed), {}))
    check(load(Flags(**exposed, insecure=True), {}))
    check(load(Flags(**exposed), {"ANTIPHON_API_KEY": "k"}))
    check(load(Flags(upstream_url="http://x/v1", host="127.0.0.1"), {}))
    check(load(Flags(upstream_url="http://x/v1", host="::1"), {}))
