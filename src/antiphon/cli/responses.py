"""`antiphon responses`: look at what a server has, and steer it.

An id may be given by any prefix that fits one response only, with or without `resp_`.
"""

import json
import sys
import time
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from antiphon.cli.api import ConnectionLostError, JSONObject, Server, ServerFlags, path_of
from antiphon.cli.failure import FAILED, CommandFailed

app = App(name="responses", help="List, show, follow and cancel the responses of a server.", version_flags=())

Output = Annotated[
    Literal["text", "json"], Parameter(name=["--output", "-o"], help="For people, or for programs.")
]

_LONGEST_OUTAGE_S = 30.0
_PAUSE_S = 0.5
_LAST_OPENING_NUMBER = 2  # created, queued, in_progress; a later in_progress takes torn words back
_WIDTH_ELSEWHERE = 120


@app.command
def ls(
    *,
    limit: Annotated[int, Parameter(help="How many, newest first (at most 100).")] = 20,
    status: Annotated[str | None, Parameter(help="Only those with this status.")] = None,
    server: ServerFlags | None = None,
    output: Output = "text",
) -> None:
    """List responses, newest first."""
    page = Server(server).get("/v1/responses", limit=limit, status=status)
    if output == "json":
        _print_json(page)
        return
    if not page["data"]:
        print("No responses yet." if status is None else f"No response is {status}.")
        return
    _print_list(page["data"])
    if page.get("has_more"):
        print(f"There are more; --limit shows up to 100 instead of {limit}.")


@app.command
def show(response_id: str, /, *, server: ServerFlags | None = None, output: Output = "text") -> None:
    """Show one response: its steps as a tree, and what it said."""
    from rich.console import Console

    from antiphon.cli.step_tree import step_tree

    api = Server(server)
    response_id = api.resolve(response_id)
    response = api.get(path_of(response_id))
    steps = api.get(path_of(response_id, "/steps"))["data"]
    if output == "json":
        _print_json({"response": response, "steps": steps})
        return
    width = None if sys.stdout.isatty() else _WIDTH_ELSEWHERE
    console = Console(highlight=False, markup=False, width=width)
    console.print(step_tree(response, steps))
    if said := _text_of(response):
        console.print(f"\n{said}", soft_wrap=True)
    if error := response.get("error"):
        console.print(f"\n{error.get('message')}", style="red", soft_wrap=True)


@app.command
def tail(
    response_id: str,
    /,
    *,
    after: Annotated[int | None, Parameter(help="Begin behind this sequence number.")] = None,
    server: ServerFlags | None = None,
    output: Output = "text",
) -> None:
    """Follow a response to its end, through lost connections and restarts of the server."""
    api = Server(server)
    response_id = api.resolve(response_id)
    cursor, lost_at = after, None
    while True:
        try:
            for event in api.events(response_id, cursor):
                cursor, lost_at = event["sequence_number"], None
                _print_event(event, output)
                if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                    _end_as(event["response"])
                    return
        except ConnectionLostError:
            pass
        lost_at = lost_at or time.monotonic()
        if time.monotonic() - lost_at > _LONGEST_OUTAGE_S:
            raise CommandFailed(
                f"{api.url} has not answered for {_LONGEST_OUTAGE_S:.0f} s. "
                f"Go on later with: antiphon responses tail {response_id} --after {cursor}"
            )
        time.sleep(_PAUSE_S)


@app.command
def cancel(response_id: str, /, *, server: ServerFlags | None = None, output: Output = "text") -> None:
    """Cancel a response; one that has ended stays as it is."""
    api = Server(server)
    response_id = api.resolve(response_id)
    response = api.post(path_of(response_id, "/cancel"))
    if output == "json":
        _print_json(response)
    else:
        print(f"{response_id} {response['status']}")


def _print_list(responses: list[JSONObject]) -> None:
    from rich.console import Console
    from rich.table import Table

    from antiphon.cli.step_tree import coloured

    table = Table(box=None, pad_edge=False)
    for name in ("ID", "STATUS", "MODEL", "AGE"):
        table.add_column(name, no_wrap=True)
    now = time.time()
    for response in responses:
        age = _age(now - response["created_at"])
        table.add_row(response["id"], coloured(response["status"]), response.get("model") or "", age)
    console = Console(highlight=False)
    console.print(table, crop=False, overflow="ignore")


def _age(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(seconds, 0):.0f}s"


def _print_event(event: JSONObject, output: str) -> None:
    if output == "json":
        print(json.dumps(event, ensure_ascii=False), flush=True)
        return
    match event["type"]:
        case "response.output_text.delta":
            print(event["delta"], end="", flush=True)
        case "response.output_text.done":
            print(flush=True)
        case "response.in_progress" if event["sequence_number"] > _LAST_OPENING_NUMBER:
            print("\n[cut off in mid-answer; the model is asked again]", flush=True)
        case "response.failed" | "response.incomplete":
            print(flush=True)
        case "response.output_item.done" if event["item"]["type"] in ("mcp_call", "function_call"):
            item = event["item"]
            print(f"[{item['name']}({item.get('arguments') or ''})]", flush=True)


def _end_as(response: JSONObject) -> None:
    """Exit as the response ended: only `completed` is a success."""
    if response["status"] != "completed":
        reason = (response.get("error") or {}).get("message") or (
            response.get("incomplete_details") or {}
        ).get("reason")
        message = f"{response['id']} ended {response['status']}" + (f": {reason}" if reason else "")
        raise CommandFailed(message.rstrip(".") + ".", FAILED)


def _text_of(response: JSONObject) -> str:
    parts = [
        part["text"]
        for item in response.get("output", ())
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    ]
    return "\n".join(parts)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))
