"""Following a response: its events from any cursor, first from the log, then live, with no gap between.

The reader subscribes before it reads the log, so what is committed meanwhile waits for it; what both have
is passed over by its number.

A torn answer that was struck is known by the `response.in_progress` that follows it in the log. A reader
that has carried some of it is cut there, unless it asked for resets in the stream; it comes back with its
cursor and reads on, the torn part being behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from antiphon.core.replay import events_of
from antiphon.domain.errors import Error
from antiphon.domain.events import TERMINAL_TYPES
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.domain.steps import StepId
from antiphon.engine.live import Channel, Closed, FellBehind, Subscription
from antiphon.store.protocol import EventWindow, Store

POLL_S = 0.5

_RESET_LINE = b"event: response.in_progress\n"
_TERMINAL_LINES = tuple(f"event: {name}\n".encode() for name in sorted(TERMINAL_TYPES))


class StreamCutError(Error):
    """Leave the stream and take it up again with the cursor: it held a torn answer, or its owner went."""

    default_code = "stream_cut"


class Follower:
    """One reader of one response. Iterate it once: it yields whole frames, several at a time."""

    def __init__(
        self,
        store: Store,
        project: str,
        response_id: str,
        channel: Channel | None,
        *,
        after: int,
        inline_resets: bool = False,
        logged: bool = True,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._project = project
        self._response_id = response_id
        self._logged = logged
        self._stopping = stopping
        self._channel = channel
        self._subscription: Subscription | None = channel.subscribe() if channel else None
        self._cursor = after
        self._inline_resets = inline_resets
        self._carried: StepId | None = None
        self._terminal = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Frames after the cursor, up to and including the terminal event; raises `StreamCutError`."""
        try:
            while not self._terminal:
                async for frames in self._from_log():
                    yield frames
                if self._ended():
                    return
                if self._subscription is None:
                    await self._wait_for_the_log()
                else:
                    async for frames in self._live(self._subscription):
                        yield frames
        finally:
            self.leave()

    async def live_only(self) -> AsyncIterator[bytes]:
        """As iterating, for a reader that was there from the first event: it rarely needs the log."""
        try:
            if self._subscription is not None:
                async for frames in self._live(self._subscription):
                    yield frames
            if not self._terminal:
                async for frames in self:
                    yield frames
        finally:
            self.leave()

    def leave(self) -> None:
        """Stop hearing. May be called again."""
        if self._subscription is not None:
            self._subscription.leave()

    async def _wait_for_the_log(self) -> None:
        """Nobody drives the response here: its log is all there is, as long as it is there."""
        if self._stopping():
            raise StreamCutError("The server stops; resume with the cursor.")
        stored = await self._store.read_response(self._project, self._response_id)
        if stored is None:
            raise StreamCutError("The response was deleted.")
        if stored.status not in ENDED_STATUSES:
            await asyncio.sleep(POLL_S)
        elif self._cursor >= stored.next_sequence_number - 1:
            self._terminal = True  # the cursor was at the end, or beyond it

    def _ended(self) -> bool:
        return self._terminal

    async def _from_log(self) -> AsyncIterator[bytes]:
        while windows := await self._store.events(self._response_id, self._cursor):
            for window in windows:
                yield self._carry(window)
            if self._terminal:
                return

    async def _live(self, subscription: Subscription) -> AsyncIterator[bytes]:
        """Until the terminal event, or until the log must be asked again."""
        while not self._terminal:
            match await subscription.next():
                case EventWindow() as window:
                    if window.last > self._cursor:
                        yield self._carry(window)
                    else:
                        self._terminal = ends_stream(window.frames)
                case FellBehind():
                    if not self._logged:
                        raise StreamCutError(
                            "The reader was too slow, and nothing is stored of this response."
                        )
                    return
                case Closed():
                    raise StreamCutError("The response goes on elsewhere; resume with the cursor.")

    def _carry(self, window: EventWindow) -> bytes:
        if (
            self._carried is not None
            and not self._inline_resets
            and window.step_id is None
            and window.frames.startswith(_RESET_LINE)
        ):
            raise StreamCutError("The answer broke off and is begun anew; resume with the cursor.")
        frames = frames_after(window, self._cursor)
        self._cursor = window.last
        self._carried = window.step_id
        self._terminal = ends_stream(frames)
        return frames


def frames_after(window: EventWindow, after: int) -> bytes:
    """The frames of a window whose numbers are above the cursor."""
    if window.first > after:
        return window.frames
    frames = window.frames.split(b"\n\n")[after - window.first + 1 : -1]
    return b"".join(frame + b"\n\n" for frame in frames)


def ends_stream(frames: bytes) -> bool:
    """True when the last frame is a terminal event."""
    start = frames.rfind(b"\n\n", 0, -2)
    return frames.startswith(_TERMINAL_LINES, 0 if start < 0 else start + 2)


def replay_of(body: bytes, after: int) -> bytes:
    """All frames after the cursor of a response whose events were not kept."""
    events = events_of(msgspec.json.decode(body))
    return b"".join(event.frame() for event in events if event.sequence_number > after)
