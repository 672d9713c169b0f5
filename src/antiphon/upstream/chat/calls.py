"""Which call a piece of a streamed tool call belongs to.

Servers differ: `index` may be missing, or be 0 for every call; calls may come in pieces, whole, or
interleaved; names or ids may come again with every piece. `CallNumbering` brings all of that to one
running number per call. Pure.
"""

import msgspec

from antiphon.domain.inference import CallDelta
from antiphon.upstream.chat.chunks import CallPiece, FunctionPiece

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class _Call:
    """A call as far as it has come."""

    __slots__ = ("arguments", "id", "name", "number")

    def __init__(self, number: int, call_id: str | None) -> None:
        self.number = number
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []

    def is_whole(self) -> bool:
        """Its arguments are a complete JSON object: what has a name now is another call."""
        try:
            return isinstance(_decode("".join(self.arguments)), dict)
        except (msgspec.DecodeError, RecursionError):
            return False


class CallNumbering:
    """The calls of one answer. True when there are any."""

    __slots__ = ("_at_index", "_calls")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at_index: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def read(self, piece: CallPiece) -> CallDelta | None:
        """The piece under its call's running number; None when it says nothing new."""
        function = piece.function
        name = (function and function.name) or ""
        arguments = _arguments(function)
        call = self._call_of(piece, name)
        if name:
            name = self._new_part_of_name(call, name)
            if not name and call.is_whole():
                return None
        call.name += name
        if arguments:
            call.arguments.append(arguments)
        return CallDelta(call.number, name, arguments) if name or arguments else None

    def _call_of(self, piece: CallPiece, name: str) -> _Call:
        known = self._known(piece)
        if known is None or self._begins_another(known, piece, name):
            known = _Call(len(self._calls), piece.id or None)
            self._calls.append(known)
        if piece.index is not None:
            self._at_index[piece.index] = known
        if piece.id and known.id is None:
            known.id = piece.id
        return known

    def _known(self, piece: CallPiece) -> _Call | None:
        if piece.index is not None:
            return self._at_index.get(piece.index)
        if piece.id:
            for call in self._calls:
                if call.id == piece.id:
                    return call
        return self._calls[-1] if self._calls else None

    @staticmethod
    def _begins_another(known: _Call, piece: CallPiece, name: str) -> bool:
        """A name under a new id is a new call; without ids, a name after complete arguments is.

        An id alone is not enough: some servers make a new one for every piece.
        """
        if not name:
            return False
        if piece.id and known.id:
            return piece.id != known.id
        return known.is_whole()

    @staticmethod
    def _new_part_of_name(call: _Call, name: str) -> str:
        """Names may come in pieces before the arguments begin; later ones are repetitions."""
        return "" if call.arguments or call.name == name else name


def _arguments(function: FunctionPiece | None) -> str:
    given = function.arguments if function is not None else None
    if isinstance(given, dict):
        return _encode(given).decode()
    return given or ""
