"""The commands, by name. Each is imported when it is used."""

from cyclopts import App, Parameter

app = App(
    name="antiphon",
    help="The Responses server that does not lose work.",
    help_format="markdown",
    version_flags=(),
    default_parameter=Parameter(negative=(), show_default=False),
)

COMMANDS = {
    "demo": ("antiphon.cli.demo:demo", "Watch a response survive the kill of its server; needs no model."),
    "dev": ("antiphon.cli.dev:dev", "Serve on this machine, and start again whenever a file changes."),
    "serve": ("antiphon.cli.serve:serve", "Serve the Responses API in front of a model server."),
    "responses": ("antiphon.cli.responses:app", "List, show, follow and cancel the responses of a server."),
    "doctor": (
        "antiphon.cli.doctor:doctor",
        "Check the store, the upstreams, the clock and work left lying.",
    ),
    "config": ("antiphon.cli.config:app", "Show the effective configuration."),
}

for _name, (_place, _help) in COMMANDS.items():
    app.command(_place, name=_name, help=_help)
