"""Live fan-out: committed events, from the journal to whoever reads along.

A `Channel` hands each window to its subscriptions; all share the same bytes. A subscription holds only a
bounded number of them: a reader that falls behind is not waited for and loses nothing, it goes back to
the log and catches up from there. Without a log (`store: false`) it is disconnected.
"""

import asyncio
from collections import deque

import msgspec

from antiphon.observe import metrics
from antiphon.store.protocol import EventWindow

MOST_BYTES_BEHIND = 1024 * 1024
MOST_BYTES_BEHIND_WITHOUT_LOG = 4 * MOST_BYTES_BEHIND


class Closed(msgspec.Struct, frozen=True):
    """Nothing more will come here: the owner is gone, or the server stops."""


class FellBehind(msgspec.Struct, frozen=True):
    """Windows were let go of; the log has them."""


Delivery = EventWindow | Closed | FellBehind


class Subscription:
    """One reader's share of a channel."""

    def __init__(self, channel: "Channel", most_bytes: int) -> None:
        self._channel = channel
        self._most_bytes = most_bytes
        self._queue: deque[Delivery] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        """Called by the channel."""
        if isinstance(delivery, EventWindow):
            self._bytes += len(delivery.frames)
            if self._bytes > self._most_bytes:
                self._queue.clear()
                self._bytes = 0
                delivery = FellBehind()
        self._queue.append(delivery)
        self._ready.set()

    async def next(self) -> Delivery:
        """The next delivery, as soon as there is one."""
        while not self._queue:
            self._ready.clear()
            await self._ready.wait()
        delivery = self._queue.popleft()
        if isinstance(delivery, EventWindow):
            self._bytes -= len(delivery.frames)
        return delivery

    def leave(self) -> None:
        """Stop reading."""
        self._channel.subscriptions.discard(self)


class Channel:
    """The events of one response, as they are committed; not `logged`, as they come.

    What no log will have is kept for the first reader, who comes right after the admission.
    """

    def __init__(self, *, logged: bool = True) -> None:
        self.subscriptions: set[Subscription] = set()
        self._unheard: list[EventWindow] | None = None if logged else []
        # The end of a long answer tells its text four times over at once: no reader is slow for that.
        self._most_bytes_behind = MOST_BYTES_BEHIND if logged else MOST_BYTES_BEHIND_WITHOUT_LOG
        self._published = -1
        self._closed = False

    def subscribe(self) -> Subscription:
        """Hear everything that is published from now on."""
        subscription = Subscription(self, self._most_bytes_behind)
        self.subscriptions.add(subscription)
        unheard, self._unheard = self._unheard, None
        for window in unheard or ():
            subscription.put(window)
        if self._closed:
            subscription.put(Closed())
        return subscription

    def publish(self, window: EventWindow) -> None:
        """Hand a committed window to every reader; one that was published before is passed over."""
        if window.first <= self._published:
            return
        if self._unheard is not None:
            self._unheard.append(window)
        self._published = window.last
        metrics.EVENTS.inc(window.last - window.first + 1)
        for subscription in self.subscriptions:
            subscription.put(window)

    def close(self) -> None:
        """Send every reader away, who comes later too; they may come back with their cursor."""
        self._closed = True
        for subscription in self.subscriptions:
            subscription.put(Closed())
