"""The view of a store as whole responses, over the finer calls that every store has.

`WholeResponses` is mixed into a store: it needs `read_response`, `input_items`, `history` and `commit`,
and leaves `get_items` to the store. All of it speaks of the default project.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.domain.errors import NotFoundError, StoreRefusedError
from antiphon.domain.ids import run_id_of
from antiphon.domain.inference import Item
from antiphon.domain.responses import ENDED_STATUSES, Response
from antiphon.store.protocol import (
    DEFAULT_PROJECT,
    Claim,
    Commit,
    CommitOutcome,
    History,
    NewRun,
    Order,
    Page,
    ResponseUpdate,
    StoredItem,
    StoredResponse,
)
from antiphon.store.rows import from_json, to_json

_ALL = 2**31


class _Primitives(Protocol):
    async def commit(self, group: Sequence[Commit]) -> list[CommitOutcome]: ...

    async def read_response(self, project: str, response_id: str) -> StoredResponse | None: ...

    async def history(self, project: str, response_id: str) -> History | None: ...

    async def input_items(
        self,
        project: str,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> Page | None: ...


class WholeResponses(_Primitives, Protocol):
    """Reads and writes whole responses through a store's primitives."""

    async def get_response(self, response_id: str) -> Response | None:
        """The response as it stands, or None."""
        stored = await self.read_response(DEFAULT_PROJECT, response_id)
        page = await self.input_items(DEFAULT_PROJECT, response_id, limit=_ALL, order="asc")
        if stored is None or page is None:
            return None
        wire = {**from_json(stored.envelope), "output": [from_json(item.data) for item in stored.output]}
        return replace(Response.from_dict(wire), input_items=tuple(map(item_of, page.items)))

    async def rehydrate(self, response_id: str) -> list[Item]:
        """The items of this response and of all before it, in order; `NotFoundError` when unknown."""
        told = await self.history(DEFAULT_PROJECT, response_id)
        if told is None:
            raise NotFoundError(f"no response has the id {response_id!r}", param="response_id")
        return list(map(item_of, told.items))

    async def persist(
        self,
        response: Response,
        *,
        conversation_id: str | None = None,
        previous_response_id: str | None = None,
    ) -> None:
        """Write an ended response with `response.input_items` and its output.

        `StoreRefusedError` when it has not ended, or when its id is taken.
        """
        outcomes = await self.commit([as_commit(response, conversation_id, previous_response_id)])
        if outcomes[0] is not None:
            raise outcomes[0]


def item_of(stored: StoredItem) -> Item:
    """The item with its JSON decoded."""
    return Item(stored.item_id, from_json(stored.data))


def as_commit(response: Response, conversation_id: str | None, previous_response_id: str | None) -> Commit:
    """The one commit that writes a whole, ended response."""
    if response.status not in ENDED_STATUSES:
        raise StoreRefusedError(
            f"response {response.id} is {response.status}: only an ended one can be persisted"
        )
    envelope = response.to_dict()
    output = envelope.pop("output")
    previous = previous_response_id or response.previous_response_id
    envelope["previous_response_id"] = previous
    if conversation_id is not None:
        envelope["conversation"] = {"id": conversation_id}
    created_at = float(response.created_at)
    encoded = to_json(envelope)
    return Commit(
        claim=Claim(run_id_of(response.id), 1, "persist"),
        commit_no=1,
        response_id=response.id,
        next_sequence_number=0,
        new_run=NewRun(
            project=DEFAULT_PROJECT,
            response_id=response.id,
            mode="background" if response.background else "foreground",
            state="ended",
            request=b"{}",
            body_digest="",
            created_at=created_at,
            model=response.model,
            status=response.status,
            envelope=encoded,
            previous_response_id=previous,
        ),
        input_items=tuple(
            StoredItem(item.id, position, to_json(item.data))
            for position, item in enumerate(response.input_items)
        ),
        response=ResponseUpdate(
            status=response.status,
            envelope=encoded,
            ended=True,
            completed_at=None if response.completed_at is None else float(response.completed_at),
            output=tuple(
                StoredItem(_id_of(item, response.id, position), position, to_json(item))
                for position, item in enumerate(output)
            ),
        ),
    )


def _id_of(item: dict[str, Any], response_id: str, position: int) -> str:
    return str(item.get("id") or f"item_{response_id.removeprefix('resp_')}{position:04x}")
