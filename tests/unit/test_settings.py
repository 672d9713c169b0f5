"""The configuration: layers, origins, and what is said of mistakes."""

from pathlib import Path

import pytest

from antiphon.cli.flags import Flags
from antiphon.cli.loading import Configuration, effective_values, load
from antiphon.domain.errors import ConfigurationError

EXAMPLE = """\
upstreams:
  vllm:   {url: "http://vllm:8000/v1", api: auto}
  backup: {url: "https://models.example/v1", api_key: "${env.BACKUP_KEY}"}
models:
  "*":     {upstream: vllm}
  support: {upstream: [vllm, backup], model: qwen3, tools: [refund, docs]}
tools:
  python: [my_tools.py]
store: sqlite:///antiphon.db
server: {host: 127.0.0.1, port: 8080, api_keys: [one, two], max_body: 64MB, insecure: false}
limits: {max_iterations: 10, max_depth: 8, running: 256, waiting: 1024}
durability: {flush_window: 5ms, on_disconnect: cancel, grace: 30s, recovery: true}
log: {level: info, format: auto}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(
    directory: Path, text: str, environ: dict[str, str] | None = None, **flags: object
) -> Configuration:
    (directory / "antiphon.yaml").write_text(text)
    return load(Flags(**flags), environ or {})


def refusal(directory: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        configured(directory, text, environ, **flags)
    return str(caught.value)


def test_a_whole_file_is_read(directory):
    """Every key of the documented example reaches the settings as its type."""
    settings = configured(directory, EXAMPLE, {"BACKUP_KEY": "secret"}).settings
    assert settings.upstreams["backup"].api_key.get_secret_value() == "secret"
    assert settings.models["*"].upstream == ("vllm",)
    assert settings.models["support"].upstream == ("vllm", "backup")
    assert settings.models["support"].tools == ("refund", "docs")
    assert settings.tools.python == ("my_tools.py",)
    assert [key.get_secret_value() for key in settings.server.api_keys] == ["one", "two"]
    assert settings.server.max_body == 64_000_000
    assert settings.durability.flush_window == 0.005
    assert settings.durability.grace == 30.0
    assert settings.durability.recovery is True
    assert settings.limits.running == 256


def test_without_anything_the_defaults_hold(directory):
    """No file, no environment, no flags: the documented defaults."""
    settings = load(Flags(), {}).settings
    assert settings.upstreams == {}
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert settings.store == "sqlite:///antiphon.db"
    assert settings.log.level == "info"


def test_later_layers_win(directory):
    """A flag beats the environment, and that beats the file, value by value."""
    text = "server: {host: 127.0.0.2, port: 1}\nlimits: {running: 1, waiting: 1}\n"
    environ = {"ANTIPHON_SERVER__PORT": "2", "ANTIPHON_LIMITS__RUNNING": "2"}
    settings = configured(directory, text, environ, port=3).settings
    assert settings.server.port == 3
    assert settings.limits.running == 2
    assert settings.limits.waiting == 1
    assert settings.server.host == "127.0.0.2"


def test_each_value_knows_its_origin(directory):
    """Default, file and line, variable, flag; interpolated values name the variable too."""
    text = 'log:\n  level: debug\nserver:\n  api_keys: ["${env.KEY}"]\n'
    environ = {"KEY": "k", "ANTIPHON_LIMITS__RUNNING": "64", "ANTIPHON_DURABILITY": '{"grace": "1m"}'}
    configuration = configured(directory, text, environ, store="memory:")
    origins = {".".join(place): origin for place, _, origin in effective_values(configuration)}
    assert origins["log.level"] == "antiphon.yaml:2"
    assert origins["log.format"] == "default"
    assert origins["server.api_keys"] == "antiphon.yaml:4 (from KEY)"
    assert origins["limits.running"] == "ANTIPHON_LIMITS__RUNNING"
    assert origins["durability.grace"] == "ANTIPHON_DURABILITY"
    assert origins["store"] == "--store"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits:\n  runing: 3\n", "antiphon.yaml:2: limits.runing is not a known setting; did you mean limits.running?"),
        ("stoer: x\n", "antiphon.yaml:1: stoer is not a known setting; did you mean store?"),
        ("upstreams:\n  a:\n    uri: http://x\n", "antiphon.yaml:3: upstreams.a.uri is not a known setting; did you mean upstreams.a.url?"),
        ("log: {zzz: 1}\n", "antiphon.yaml:1: log.zzz is not a known setting; log has level, format."),
        ("store: {x: 1}\n", "antiphon.yaml:1: store.x is not a known setting; store holds a value, not a section."),
        ("store: x\nstore: x\n", "antiphon.yaml:2: store is set a second time; keep one of them."),
        ("limits: 3\n", "antiphon.yaml:1: limits is a section: write its keys below it, indented."),
        ("- a\n", "antiphon.yaml:1: the file is a section: write its keys below it, indented."),
        ("tools: {python: [{a: b}]}\n", "antiphon.yaml:1: tools.python: a plain value is expected here."),
        ("limits: &a\n  running: *a\n", "antiphon.yaml:1: limits.running contains itself."),
        ("server: {port: many}\n", "antiphon.yaml:1: server.port: input should be a valid integer"),
        ("\nserver: {port: 70000}\n", "antiphon.yaml:2: server.port: input should be less than or equal to 65535."),
        ("store: redis://x\n", "antiphon.yaml:1: store: 'redis://x' is not a store; write sqlite:///FILE or memory:."),
        ("upstreams: {a: {url: 'localhost:11434'}}\n", "antiphon.yaml:1: upstreams.a.url: 'localhost:11434' is not an address; write it like http://localhost:8000/v1."),
        ("upstreams:\n  a: {api: chat}\n", "antiphon.yaml:2: upstreams.a.url: it is required, and missing."),
        ("durability: {grace: soon}\n", "antiphon.yaml:1: durability.grace: 'soon' should be a duration such as 5ms, 30s, 2m or 1h."),
        ("server: {max_body: large}\n", "antiphon.yaml:1: server.max_body: 'large' should be a size such as 64MB"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_line_and_the_remedy(directory, text, message):
    """Unknown keys, wrong types and wrong shapes are told with file, line, key, and what to write."""
    assert refusal(directory, text).startswith(message)


def test_broken_yaml_names_its_line(directory):
    """A syntax error is told with the line, and a bare reference with the need for quotes."""
    assert refusal(directory, "store: x\nlimits: [\n").startswith("antiphon.yaml:3: this is not valid YAML")
    assert "needs quotes" in refusal(directory, "upstreams: {a: {url: ${env.U}}}\n", {"U": "http://x"})


def test_a_file_that_was_asked_for_must_exist(directory):
    """`--config` names a file that is not there."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: the configuration file cannot be read"):
        load(Flags(config=Path("nowhere.yaml")), {})


def test_scalars_are_read_as_the_schema_says(directory):
    """YAML's own guesses (dates, numbers, yes) do not leak: a model called 2024-05-01 stays a name."""
    text = 'upstreams: {a: {url: "http://x"}}\nmodels: {m: {upstream: a, model: 2024-05-01}}\ndurability: {recovery: no}\n'
    settings = configured(directory, text).settings
    assert settings.models["m"].model == "2024-05-01"
    assert settings.durability.recovery is False


def test_an_empty_section_says_nothing(directory):
    """A section whose keys are all commented out keeps its defaults, and so does an empty file."""
    assert configured(directory, "limits:\nstore: 'memory:'\n").settings.limits.running == 256
    assert configured(directory, "# nothing yet\n").settings.limits.running == 256


def test_environment_reaches_everything(directory):
    """Nested names, lists with commas or JSON, and whole sections as JSON."""
    environ = {
        "ANTIPHON_UPSTREAMS__VLLM__URL": "http://vllm:8000/v1",
        "ANTIPHON_UPSTREAMS__VLLM__API_KEY": "1234",
        "ANTIPHON_MODELS": '{"*": {"upstream": "vllm"}}',
        "ANTIPHON_TOOLS__PYTHON": "a.py, b.py",
        "ANTIPHON_SERVER__API_KEYS": '["x,1", "y"]',
    }
    settings = load(Flags(), environ).settings
    assert settings.upstreams["vllm"].api_key.get_secret_value() == "1234"
    assert settings.models["*"].upstream == ("vllm",)
    assert settings.tools.python == ("a.py", "b.py")
    assert [key.get_secret_value() for key in settings.server.api_keys] == ["x,1", "y"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ANTIPHON_LIMITS__RUNING", "1", "ANTIPHON_LIMITS__RUNING: limits.runing is not a known setting; did you mean limits.running?"),
        ("ANTIPHON_LIMITS_RUNNING", "1", "ANTIPHON_LIMITS_RUNNING is not a known setting; did you mean ANTIPHON_LIMITS__RUNNING?"),
        ("ANTIPHON_LIMITS__RUNNING", "lots", "ANTIPHON_LIMITS__RUNNING: limits.running: input should be a valid integer"),
        ("ANTIPHON_LIMITS", "lots", "ANTIPHON_LIMITS is a section"),
        ("ANTIPHON_LIMITS", "{", "ANTIPHON_LIMITS: this is not valid JSON"),
        ("ANTIPHON_LIMITS", '{"runing": 1}', "ANTIPHON_LIMITS: limits.runing is not a known setting"),
        ("ANTIPHON_STORE__X", "1", "ANTIPHON_STORE__X: store.x is not a known setting"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(directory, name, value, message):
    """A variable that cannot be meant is told by its name, with the nearest right one."""
    with pytest.raises(ConfigurationError) as caught:
        load(Flags(), {name: value})
    assert str(caught.value).startswith(message)


def test_names_that_orchestrators_set_are_left_alone(directory):
    """Kubernetes puts ANTIPHON_… addresses of services into every container; they are not ours."""
    environ = {
        "ANTIPHON_PORT": "tcp://10.0.0.1:8080",
        "ANTIPHON_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_SERVER_PORT": "tcp://10.0.0.1:8080",
    }
    assert effective_values(load(Flags(), environ)) == effective_values(load(Flags(), {}))


def test_api_keys_come_from_file_or_environment(directory):
    """One key per line, comments skipped; the flag beats ANTIPHON_API_KEY."""
    (directory / "keys").write_text("# clients\nalpha\n\n beta \n")
    environ = {"ANTIPHON_API_KEY": "gamma"}
    keys = load(Flags(), environ).settings.server.api_keys
    assert [key.get_secret_value() for key in keys] == ["gamma"]
    keys = load(Flags(api_key_file=Path("keys")), environ).settings.server.api_keys
    assert [key.get_secret_value() for key in keys] == ["alpha", "beta"]


def test_an_empty_key_file_is_refused(directory):
    """A key file without a key would silently let everybody in."""
    (directory / "keys").write_text("# none yet\n")
    with pytest.raises(ConfigurationError, match="there is no key in it"):
        load(Flags(api_key_file=Path("keys")), {})


def test_secrets_do_not_show(directory):
    """Neither errors nor the printed settings hold a key."""
    configuration = configured(directory, EXAMPLE, {"BACKUP_KEY": "hunter2"})
    assert "hunter2" not in repr(configuration.settings)
    assert "hunter2" not in refusal(directory, EXAMPLE + "stoer: x\n", {"BACKUP_KEY": "hunter2"})
