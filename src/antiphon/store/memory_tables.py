"""What the memory store remembers: frozen rows in dicts, found by the keys that the reads need."""

from collections.abc import Iterable

from msgspec import Struct

from antiphon.domain.steps import StepId
from antiphon.store.protocol import Claim, EventWindow, StepRow, StoredItem, StoredResponse, StoredRun
from antiphon.store.rows import place_of


class Kept(Struct):
    """A response with what hangs on it. `number` rises with every response."""

    row: StoredResponse
    number: int
    input: dict[int, StoredItem]
    output: dict[int, StoredItem]
    windows: list[EventWindow]
    deleted: bool = False

    def items(self) -> list[StoredItem]:
        return [*in_order(self.input), *in_order(self.output)]


class Tables:
    """Everything that is remembered."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.responses: dict[str, Kept] = {}
        self.children: dict[str, set[str]] = {}
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.steps: dict[StepId, StepRow] = {}
        self.places: dict[tuple[str, str, int], StepId] = {}
        self.chains: dict[str, list[StepId]] = {}
        self.numbers = 0

    def holds(self, claim: Claim) -> bool:
        run = self.runs.get(claim.run_id)
        return (
            run is not None and run.state != "ended" and (run.fence, run.owner) == (claim.fence, claim.owner)
        )

    def visible(self, project: str, response_id: str) -> Kept | None:
        kept = self.responses.get(response_id)
        return None if kept is None or kept.deleted or kept.row.project != project else kept

    def put_step(self, row: StepRow) -> None:
        if row.id not in self.steps:
            self.places[place_of(row)] = row.id
            self.chains.setdefault(row.request_id, []).append(row.id)
        self.steps[row.id] = row

    def chain(self, request_id: str) -> list[StepRow]:
        rows = (self.steps[step_id] for step_id in self.chains.get(request_id, ()))
        return sorted(rows, key=lambda row: row.step_sequence)

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers


def in_order(items: dict[int, StoredItem]) -> Iterable[StoredItem]:
    """Items by position."""
    return (items[position] for position in sorted(items))
