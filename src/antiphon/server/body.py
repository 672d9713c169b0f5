"""Request bodies: read with a bound, unpacked with a bound, decoded once."""

import zlib
from hashlib import sha256
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from antiphon.domain.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError


class Body(msgspec.Struct, frozen=True):
    """A decoded JSON body and the digest of the bytes it came as."""

    wire: Any
    digest: str


async def read_body(request: Request, most_bytes: int) -> Body:
    """Read and decode; raises `PayloadTooLargeError`, `UnsupportedMediaError`, `InvalidRequestError`."""
    raw = await _read(request, most_bytes)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    match encoding:
        case "" | "identity":
            plain = raw
        case "gzip" | "deflate":
            plain = _unpack(raw, most_bytes, encoding)
        case other:
            raise UnsupportedMediaError(
                f"Content-Encoding {other!r} is not read here.", hint="Send the body plain or with gzip."
            )
    try:
        wire = msgspec.json.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    return Body(wire, sha256(plain).hexdigest())


async def _read(request: Request, most_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most_bytes:
                raise _too_large(most_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequestError("The connection ended before the body did.") from None
    return b"".join(chunks)


def _unpack(raw: bytes, most_bytes: int, encoding: str) -> bytes:
    window = 16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    unpacker = zlib.decompressobj(window)
    try:
        plain = unpacker.decompress(raw, most_bytes + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"The body is not {encoding}: {error}.", code="invalid_encoding") from None
    if len(plain) > most_bytes:
        raise _too_large(most_bytes)
    if not unpacker.eof or unpacker.unused_data:
        wrong = "has more after its end" if unpacker.eof else "ends too early"
        raise InvalidRequestError(f"The {encoding} body {wrong}.", code="invalid_encoding")
    return plain


def _too_large(most_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The body is larger than {most_bytes} bytes.", hint="The operator sets server.max_body."
    )
