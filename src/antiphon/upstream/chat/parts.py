"""Content of Responses items as content of chat messages.

Text alone becomes a plain string, because that is what every chat template accepts; with an image or
a file among the parts the list form is used. Parts of unknown types are left out. Pure.
"""

from typing import Any

import msgspec

from antiphon.domain.errors import InvalidRequestError

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})

ChatContent = str | list[dict[str, Any]]

_encode = msgspec.json.Encoder(order="deterministic").encode


def chat_content(content: Any, *, joiner: str = "\n") -> ChatContent:
    """The chat form of an item's `content` or `output`: a string, or parts where text is not enough."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            parts = [part for given in content if (part := _chat_part(given)) is not None]
            if all(part["type"] == "text" for part in parts):
                return joiner.join(part["text"] for part in parts)
            return parts
        case _:
            return _encode(content).decode()


def _chat_part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return _text(part)
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return _text(str(part.get("text") or ""))
    match kind:
        case "refusal":
            return _text(str(part.get("refusal") or ""))
        case "input_image":
            return _image(part)
        case "input_file":
            return _file(part)
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case "input_video":
            return {"type": "video_url", "video_url": {"url": part.get("video_url")}}
        case _:
            return None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(part: dict[str, Any]) -> dict[str, Any]:
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str) or not url:
        raise InvalidRequestError(
            "An input_image needs an image_url: stored files cannot be shown to this model.",
            param="input",
            code="unsupported_content",
            hint="Send the image as an https or data URL.",
        )
    image: dict[str, Any] = {"url": url}
    if part.get("detail"):
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _file(part: dict[str, Any]) -> dict[str, Any]:
    """A chat file part. It has no field for a URL; servers that fetch take it in `file_data`."""
    file = {name: part[name] for name in ("filename", "file_data", "file_id") if part.get(name)}
    if "file_data" not in file and part.get("file_url"):
        file["file_data"] = part["file_url"]
    return {"type": "file", "file": file}
