"""Messages as JSON objects: a dataclass's fields, its class's name as `type`.

JSON, not pickle: pickled bytes can run code.
"""

from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

Message = TypeVar("Message")


class MessageError(ValueError):
    """Data that is no message of the protocol: no object, of an unknown type, or with a missing or wrong field."""


def encode(message: object) -> dict[str, Any]:
    """The JSON object of a message.

    Args:
        message: an instance of a dataclass; nested dataclasses, paths and enums are allowed.
    """
    return {"type": type(message).__name__, **_adapter(type(message)).dump_python(message, mode="json")}


class MessageCodec(Generic[Message]):
    """Decoder of one side's messages.

    Args:
        types: the dataclasses that this side may send. Annotations must resolve at run time: no TYPE_CHECKING imports.
    """

    def __init__(self, *types: type[Message]):
        self._types = {kind.__name__: kind for kind in types}

    def decode(self, data: Any) -> Message:
        """The message of a JSON object that `encode` made. Fields that it does not know are ignored.

        Raises:
            MessageError: it is no such message.
        """
        name = data.get("type") if isinstance(data, dict) else None
        kind = self._types.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MessageError(f"unknown message type {str(name)[:80]!r}")
        try:
            return _adapter(kind).validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise MessageError(f"{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
