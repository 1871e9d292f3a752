"""Which fields an engine's requests may hold, from the engine's own OpenAPI document.

An engine that ignores names it does not know (vLLM does, in silence) answers another question than the one that was
asked. So every name in a body is looked up here first, as deep as the document names them:

    an object schema with `properties`   holds these names and no others, whatever `additionalProperties` says
    an object schema without             holds anything: a JSON schema, arguments of a template
    several alternatives                 those that the value's own `type` and `role` leave over, taken together

Values are left to the engine, which refuses a wrong one itself; only a `role` that no message has is refused here,
because engines hand it to the chat template, and templates drop what they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from qserve.wire.errors import ApiError, unknown_field
from qserve.wire.hints import FieldNames, hint_for, names_of

__all__ = ["EngineFields", "fields_of"]

# The names by which alternatives are told apart, if a schema gives them fixed values.
_TAGS = ("type", "role")
# Routes that clients mix up: the fields of one are sent to another.
_MIXED_UP = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# Roles that chat templates know. Schemas list more (`function`, `critic`), and a template drops such a message unread.
_ROLES = frozenset({"assistant", "developer", "system", "tool", "user"})


@dataclass(frozen=True, slots=True)
class _Object:
    """One object schema: its names, and the values that its tags may have."""

    fields: Mapping[str, _Shape]
    tags: Mapping[str, frozenset[str]]
    required: frozenset[str]

    def can_be(self, value: Mapping[str, Any]) -> bool:
        """False if the tags of `value` say that it is another alternative."""
        for name, allowed in self.tags.items():
            given = value.get(name)
            if given is None and name in self.required:
                return False
            if isinstance(given, str) and given not in allowed:
                return False
        return True


@dataclass(eq=False, slots=True)
class _Shape:
    """What may stand in one place: any of `objects`, or lists of `items`. `is_open`: an object of any names, too."""

    objects: list[_Object] = field(default_factory=list)
    items: list[_Shape] = field(default_factory=list)
    is_open: bool = False

    @property
    def has_names(self) -> bool:
        """False for strings, numbers, token ids: a million of them need not be looked at."""
        return bool(self.objects) or any(one.has_names for one in self.items)


@dataclass(frozen=True)
class EngineFields:
    """What `fields_of` compiled.

    Attributes:
        document: the engine's OpenAPI document.
        shapes: the request body of each route, by (path, method in capitals); a route without a body has none.
        routes: every (path, method) that the engine serves.
    """

    document: Mapping[str, Any] = field(repr=False, hash=False)
    shapes: Mapping[tuple[str, str], _Shape] = field(repr=False, compare=False)
    routes: frozenset[tuple[str, str]]

    def names(self, path: str, method: str) -> frozenset[str] | None:
        """Names that the body of a route may have at its top; None: any, or it has none."""
        shape = self.shapes.get((path, method))
        if shape is None or shape.is_open or not shape.objects:
            return None
        return frozenset(name for one in shape.objects for name in one.fields)

    def check(self, path: str, method: str, body: Mapping[str, Any], beside: frozenset[str] = frozenset()) -> None:
        """Raises ApiError 400 for the first name that the engine does not know. Null means "not given".

        `beside`: names that are taken at any depth although the document lacks them.
        """
        shape = self.shapes.get((path, method))
        if shape is None:
            return
        try:
            _check([shape], body, "", beside)
        except ApiError as error:
            if error.code != "unsupported_field" or error.param is None:
                raise
            raise unknown_field(error.param, hint=self._hint(path, method, error.param)) from None

    def _hint(self, path: str, method: str, name: str) -> str:
        """What was probably meant by the unknown field of this dotted name."""
        others = {route: _names(self, route, "POST") for route in _MIXED_UP if route != path}
        return hint_for(name.split("."), _names(self, path, method), others)


@lru_cache(maxsize=32)
def _names(fields: EngineFields, path: str, method: str) -> FieldNames:
    """The names of a route's body by their places; none of a route that the engine does not serve."""
    operation = fields.document["paths"].get(path, {}).get(method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    return names_of(schema, fields.document.get("components", {}).get("schemas", {}))


def fields_of(document: Mapping[str, Any]) -> EngineFields:
    """Compiles an OpenAPI 3.1 document. Pure; some milliseconds for vLLM's, which has 330 kB."""
    compiler = _Compiler(document.get("components", {}).get("schemas", {}))
    shapes = {}
    routes = set()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            routes.add((path, method.upper()))
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                shapes[path, method.upper()] = compiler.shape(content["application/json"]["schema"])
    return EngineFields(document, shapes, frozenset(routes))


class _Compiler:
    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._named: dict[str, _Shape] = {}

    def shape(self, schema: Mapping[str, Any]) -> _Shape:
        """The shape of a schema; one that refers to itself becomes a shape that holds itself."""
        if "$ref" in schema:
            return self._of_name(schema["$ref"].rpartition("/")[2])
        shape = _Shape()
        self._add(shape, schema)
        return shape

    def _of_name(self, name: str) -> _Shape:
        if name not in self._named:
            self._named[name] = shape = _Shape()
            self._add(shape, self._schemas[name])
        return self._named[name]

    def _add(self, shape: _Shape, schema: Mapping[str, Any]) -> None:
        for kind in ("anyOf", "oneOf", "allOf"):
            for alternative in schema.get(kind, ()):
                other = self.shape(alternative)
                shape.objects += other.objects
                shape.items += other.items
                shape.is_open |= other.is_open
        if "properties" in schema:
            shape.objects.append(self._object(schema))
        elif schema.get("type") == "object" or not schema.keys() - {"title", "description", "default"}:
            shape.is_open = True
        if "items" in schema:
            shape.items.append(self.shape(schema["items"]))

    def _object(self, schema: Mapping[str, Any]) -> _Object:
        properties = schema["properties"]
        tags = {name: values for name in _TAGS if (values := _fixed_values(properties.get(name, {})))}
        fields = {name: self.shape(one) for name, one in properties.items()}
        return _Object(fields, tags, frozenset(schema.get("required", ())))


def _fixed_values(schema: Mapping[str, Any]) -> frozenset[str]:
    """The strings that a `const` or an `enum` allows; none if it allows others as well."""
    if "const" in schema:
        return frozenset([schema["const"]])
    return frozenset(one for one in schema.get("enum", ()) if isinstance(one, str))


def _check(shapes: list[_Shape], value: Any, path: str, beside: frozenset[str]) -> None:
    if isinstance(value, dict):
        _check_object(shapes, value, path, beside)
    elif isinstance(value, list):
        items = [one for shape in shapes for one in shape.items if one.has_names]
        if items:
            for index, item in enumerate(value):
                _check(items, item, f"{path}{index}.", beside)


def _check_object(shapes: list[_Shape], value: dict[str, Any], path: str, beside: frozenset[str]) -> None:
    objects = _alternatives([one for shape in shapes for one in shape.objects], value, path)
    if not objects or any(shape.is_open for shape in shapes):
        return  # anything goes, or nothing does, and then the engine says why
    for name, inner in value.items():
        if inner is None or name in beside:
            continue
        known = [one.fields[name] for one in objects if name in one.fields]
        if not known:
            raise unknown_field(path + name)
        if isinstance(inner, (dict, list)):
            _check(known, inner, f"{path}{name}.", beside)


def _alternatives(objects: list[_Object], value: dict[str, Any], path: str) -> list[_Object]:
    """Those that `value` can be, by its tags; a tag that one of them knows must be known to all."""
    roles = frozenset().union(*(one.tags.get("role", frozenset()) for one in objects))
    role = value.get("role")
    if roles and isinstance(role, str) and role not in roles & _ROLES:
        allowed = ", ".join(sorted(roles & _ROLES))
        raise ApiError(
            400, f"'{path}role': {role[:100]!r} is not a role; there is {allowed}", "invalid_value", f"{path}role"
        )
    if len(objects) == 1:
        return objects
    left = [one for one in objects if one.can_be(value)]
    for name in _TAGS:
        if name in value and any(name in one.tags for one in left):
            left = [one for one in left if name in one.fields]
    return left
