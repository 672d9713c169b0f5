"""Test doubles and judges, as public as the rest: for our own tests and for people who build on Antiphon.

`FakeUpstream` is a scripted model server over real HTTP, with faults on demand; `loop_script` and the
others in `scripts` say what it answers. `EffectLedger` keeps on disk what tools really did.
`RecordingReader` reads a response's events through any number of broken connections.
`StreamValidator` holds a stream of events against the wire's rules, `check_response` a Response object,
`fold` makes a response out of events; `SchemaValidator` holds both against published schemas.
All of them work in one process and across processes that are killed. May import everything below it.
Begin with `fake_upstream`, then `stream_validator`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.testing.effect_ledger import EffectLedger
    from antiphon.testing.fake_upstream import FakeUpstream
    from antiphon.testing.faults import Fault, FaultKind
    from antiphon.testing.recording_client import RecordingReader
    from antiphon.testing.schema_validator import SchemaValidator
    from antiphon.testing.scripts import (
        ScriptedCall,
        Turn,
        answer_script,
        loop_script,
        turns_script,
    )
    from antiphon.testing.stream_validator import StreamValidator, check_response, check_stream, fold

# Loaded when first used: `python -m antiphon.testing.fake_upstream` must not find itself imported already.
_HOMES = {
    "EffectLedger": "effect_ledger",
    "FakeUpstream": "fake_upstream",
    "Fault": "faults",
    "FaultKind": "faults",
    "RecordingReader": "recording_client",
    "SchemaValidator": "schema_validator",
    "ScriptedCall": "scripts",
    "StreamValidator": "stream_validator",
    "Turn": "scripts",
    "answer_script": "scripts",
    "check_response": "stream_validator",
    "check_stream": "stream_validator",
    "fold": "stream_validator",
    "loop_script": "scripts",
    "turns_script": "scripts",
}

__all__ = [
    "EffectLedger",
    "FakeUpstream",
    "Fault",
    "FaultKind",
    "RecordingReader",
    "SchemaValidator",
    "ScriptedCall",
    "StreamValidator",
    "Turn",
    "answer_script",
    "check_response",
    "check_stream",
    "fold",
    "loop_script",
    "turns_script",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
