"""A JSON schema as the parts that it is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")
_BESIDE: Final = ("anyOf", "oneOf", "$ref")
"""What else may have to hold of the same object, ``allOf`` apart."""

_MORE: Final = ("additionalProperties", "unevaluatedProperties", "patternProperties")


class Part(NamedTuple):
    """A schema within one, and where."""

    place: str
    schema: dict[str, Any]


def parts_of(part: Part) -> Iterator[Part]:
    """The schemas right inside one."""
    place, schema = part
    for name in _BY_NAME:
        if isinstance(named := schema.get(name), dict):
            yield from (Part(f"{place}.{name}.{key}", each) for key, each in named.items() if isinstance(each, dict))
    for name in _LISTED:
        if isinstance(listed := schema.get(name), list):
            yield from (Part(f"{place}.{name}[{at}]", each) for at, each in enumerate(listed) if isinstance(each, dict))
    for name in _SINGLE:
        if isinstance(each := schema.get(name), dict):
            yield Part(f"{place}.{name}", each)


def closed(schema: dict[str, Any]) -> None:
    """Have objects no properties but those that are named, where the schema leaves it open: a model that may always add
    one more rarely ends. Not where several schemas hold at once, each of which names some of the properties."""
    parts, left = list[dict[str, Any]](), [Part("", schema)]
    while left:
        part = left.pop()
        parts.append(part.schema)
        left += parts_of(part)
    named = [each for each in parts if isinstance(each.get("properties"), dict)]
    if any("allOf" in each for each in parts) or any(name in each for each in named for name in _BESIDE):
        return
    for each in named:
        if not any(name in each for name in _MORE):
            each["additionalProperties"] = False


def pointed_at(root: Any, pointer: Any) -> Any:
    """What a ``$ref`` means, within the schema; None where it is not there."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    for name in unquote(pointer[1:]).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = root.get(key)
        elif isinstance(root, list) and key.isdecimal() and len(key) < 6 and int(key) < len(root):
            root = root[int(key)]
        else:
            return None
    return root
