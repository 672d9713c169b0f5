"""The evidence of one response's life, collected over the deaths of its servers, for `history` to judge."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.testing.effect_ledger import LedgerCall
from antiphon.testing.fake_upstream import RecordedRequest
from antiphon.testing.recording_client import Connection
from antiphon.testing.snapshots import RunRecord

JSONObject = dict[str, Any]


class ResponseHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one response.

    `records` is its run in each snapshot, oldest first; the last one is of the end. `replays` are the log as
    the server gave it, by cursor; -1, the whole of it, must be among them unless the response's events
    were never kept. `readers` holds each reader's connections in order; `requests` and `calls` are what model
    and tools got of this response, each tool call with arguments of its own.
    """

    body: JSONObject
    records: Sequence[RunRecord]
    replays: dict[int, list[JSONObject]]
    readers: Sequence[Sequence[Connection]]
    requests: Sequence[RecordedRequest]
    calls: Sequence[LedgerCall]
    status: str = "completed"

    @property
    def response_id(self) -> str:
        """The response's id."""
        return str(self.body["id"])

    @property
    def final(self) -> RunRecord:
        """The run as it ended."""
        return self.records[-1]

    @property
    def replay(self) -> list[JSONObject]:
        """The whole log as the server gave it."""
        return self.replays[-1]
