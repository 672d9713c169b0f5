"""What the doctor looks at. Each part finds one or more things, and none stops the others.

Nothing is changed: a SQLite file that does not exist yet is not made, and no run is claimed.
"""

import os
import time
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from antiphon.cli.checks import CATCH_ALL, check, is_loopback, routes
from antiphon.cli.failure import CommandFailed, as_failure
from antiphon.cli.flags import Flags
from antiphon.cli.loading import Configuration, load
from antiphon.cli.settings import Settings, UpstreamSettings
from antiphon.cli.wiring import target_of, tools_of
from antiphon.domain.errors import Error
from antiphon.store.opening import open_store
from antiphon.store.protocol import DEFAULT_PROJECT, Store, StoredRun

_ANSWER_WITHIN_S = 5.0
_LARGEST_SKEW_S = 5.0
_NOT_BEFORE = 1_735_689_600.0
"""2025-01-01: a clock before this was never set."""

_UNFINISHED = ("queued", "in_progress")
_MOST_SHOWN = 5
_PAGE = 100
_OK = 200


class Verdict(Enum):
    """How a finding is to be taken."""

    FINE = "fine"
    NOTE = "note"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    verdict: Verdict
    subject: str
    text: str


def fine(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Verdict.FINE, subject, text)


def note(subject: str, text: str) -> Finding:
    """Worth knowing, not wrong."""
    return Finding(Verdict.NOTE, subject, text)


def wrong(subject: str, text: str) -> Finding:
    """Something to repair."""
    return Finding(Verdict.WRONG, subject, text)


async def examine(flags: Flags, tell: Callable[[Finding], None]) -> int:
    """Look at everything, tell each finding as it is made, and give the number of wrong ones."""
    count = 0

    def tell_all(findings: Iterable[Finding]) -> None:
        nonlocal count
        for finding in findings:
            count += finding.verdict is Verdict.WRONG
            tell(finding)

    try:
        configuration = load(flags)
    except Error as error:
        tell_all([wrong("configuration", str(as_failure(error)))])
        return count
    tools: set[str] | None = None
    tell_all(_configuration(configuration))
    try:
        tools = {tool.schema.name for tool in tools_of(configuration)}
        tell_all([fine("tools", ", ".join(sorted(tools)) or "none")])
    except Error as error:
        tell_all([wrong("tools", str(as_failure(error)))])
    tell_all(_clock())
    for name, upstream in configuration.settings.upstreams.items():
        tell_all(await _upstream(f"upstream {name}", upstream))
    tell_all(await _store(configuration.settings, tools))
    return count


def _configuration(configuration: Configuration) -> list[Finding]:
    try:
        check(configuration)
    except CommandFailed as failure:
        return [wrong("configuration", str(failure))]
    except Error as error:
        return [wrong("configuration", str(as_failure(error)))]
    return [fine("configuration", "each value is known, and they agree")]


def _clock() -> list[Finding]:
    now = time.time()
    if now < _NOT_BEFORE:
        return [wrong("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}; set it.")]
    return [fine("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))]


async def _upstream(subject: str, upstream: UpstreamSettings) -> list[Finding]:
    """Reachable, with a list of models, and a clock that agrees with ours."""
    target = target_of(upstream)
    url = target.url.removesuffix("/chat/completions") + "/models"
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=headers) as answer,
        ):
            status, date, body = answer.status, answer.headers.get("Date"), await answer.read()
    except TimeoutError:
        return [wrong(subject, f"{url} did not answer within {_ANSWER_WITHIN_S:.0f} s.")]
    except (aiohttp.ClientError, OSError) as error:
        return [wrong(subject, f"{url} cannot be reached: {error}. Is it running, and is the address right?")]
    return [_models(subject, url, status, body), *_skew(subject, date)]


def _models(subject: str, url: str, status: int, body: bytes) -> Finding:
    if status in (401, 403):
        return wrong(subject, f"{url} refuses the API key ({status}). Set upstreams.NAME.api_key.")
    if status != _OK:
        return wrong(subject, f"{url} answered {status}. Does the address end in /v1?")
    try:
        names = [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return wrong(subject, f"{url} answered with something that is not a list of models.")
    if not names:
        return wrong(subject, f"{url} answers, and lists no model.")
    return fine(subject, f"answers, with {_some(names)}")


def _skew(subject: str, date: str | None) -> list[Finding]:
    try:
        skew_s = time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    except ValueError:
        return []
    if abs(skew_s) <= _LARGEST_SKEW_S:
        return []
    return [
        wrong("clock", f"it differs by {skew_s:+.0f} s from that of {subject}; let both be set over NTP.")
    ]


async def _store(settings: Settings, tools: set[str] | None) -> list[Finding]:
    if settings.store == "memory:":
        return [note("store", "memory: keeps nothing; a restart loses everything")]
    if (place := _place_for(Path(settings.store.removeprefix("sqlite:///")))) is not None:
        return [place]
    store = open_store(settings.store)
    try:
        await store.open()
    except Error as error:
        if running := await _running_server(settings):
            return [note("store", f"{error}; asking the server there"), *running]
        return [wrong("store", str(as_failure(error)))]
    try:
        holds = await store.check()
        return [_written(settings.store, holds), *await _left_lying(store, settings, tools)]
    except Error as error:
        return [wrong("store", str(as_failure(error)))]
    finally:
        await store.close()


def _place_for(path: Path) -> Finding | None:
    """What is to be said of a file that does not exist yet; None of one that does."""
    if path.exists():
        return None
    directory = path.resolve().parent
    if not directory.is_dir():
        return wrong(
            "store", f"the directory {directory} does not exist. Create it, or choose another --store."
        )
    if not os.access(directory, os.W_OK):
        return wrong("store", f"{directory} cannot be written to by this user.")
    return fine("store", f"{path} does not exist yet, and can be made")


def _written(url: str, holds: dict[str, Any]) -> Finding:
    size = f" in {holds['size_bytes'] / 1e6:.1f} MB" if "size_bytes" in holds else ""
    return fine("store", f"{url} can be written; {holds['responses']} responses{size}")


async def _left_lying(store: Store, settings: Settings, tools: set[str] | None) -> list[Finding]:
    """Unfinished runs: those that the next server takes up, and those that it cannot."""
    runs = [run for status in _UNFINISHED for run in await _runs_with(store, status)]
    stuck = {run.response_id: missing for run in runs if (missing := _missing(run, settings, tools))}
    findings = []
    if len(runs) > len(stuck):
        findings.append(note("work", f"{len(runs) - len(stuck)} unfinished; the next server goes on with it"))
    for response_id, missing in list(stuck.items())[:_MOST_SHOWN]:
        findings.append(wrong("work", f"{response_id} needs {', '.join(missing)}, which nobody here has."))
    if len(stuck) > _MOST_SHOWN:
        findings.append(wrong("work", f"and {len(stuck) - _MOST_SHOWN} more that nobody can go on with."))
    return findings or [fine("work", "nothing is unfinished")]


async def _runs_with(store: Store, status: str) -> list[StoredRun]:
    runs: list[StoredRun] = []
    after = None
    while True:
        page = await store.list_responses(DEFAULT_PROJECT, limit=_PAGE, after=after, status=status)
        for response in page.responses:
            run = await store.get_run(response.run_id)
            if run is not None and run.state != "ended":
                runs.append(run)
        if not page.has_more:
            return runs
        after = page.responses[-1].response_id


def _missing(run: StoredRun, settings: Settings, tools: set[str] | None) -> list[str]:
    """What the run requires and is not here; None as `tools`, because they failed to load, misses none."""
    known_models = routes(settings)
    missing = []
    for requirement in run.requires:
        kind, _, name = requirement.partition(":")
        lacks_tool = kind == "tool" and tools is not None and name not in tools
        lacks_model = kind == "model" and CATCH_ALL not in known_models and name not in known_models
        if lacks_tool or lacks_model:
            missing.append(f"{kind} {name!r}")
    return missing


async def _running_server(settings: Settings) -> list[Finding]:
    """What a server on our own address says of itself; nothing when there is none."""
    host = settings.server.host
    if is_loopback(host) or host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not listened on
        host = "127.0.0.1"
    base = (
        f"http://[{host}]:{settings.server.port}" if ":" in host else f"http://{host}:{settings.server.port}"
    )
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"{base}/health") as answer:
                health = answer.status
            async with session.get(f"{base}/readyz") as answer:
                ready, says = answer.status, msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return []
    subject = f"server {base}"
    if health != _OK or ready != _OK:
        return [
            wrong(subject, f"it is not ready: {says.get('reason', f'/health {health}, /readyz {ready}')}.")
        ]
    stuck = says.get("unclaimable", [])
    lying = [wrong("work", f"{_some(stuck)}: the server lacks their model or a tool.")] if stuck else []
    return [fine(subject, "alive, and ready for work"), *lying]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
