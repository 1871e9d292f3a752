"""A parameter followed through the code of a package, without running it.

Read: a function in the order of its source; branches one after the other, the outer of two nested calls first, what
stands in an f-string not at all.

Held: the parameter, a part of it (`wanted.model`), and the name that is given such a value (of several at once the
first): the parameter itself under another name, an element of it in a loop, `replace(it, ...)`, a foreign type made of
it (`Path(it)`), what a method of it returns, and what a function of the package returns whose first argument it is. Not
held: what is compared with it, and an object of the package that is made of it, so that its fields are not followed.

Followed: a call that is given what is held, by position, by keyword, or as the object of a method. A function that was
read for the same first parameter before is entered and not read again. One that neither passes the parameter on nor
names it anew is not entered: its name says what it tells.

Which function: the name as it is imported; a method by the class of its object where an annotation tells it, else the
only method of that name in the package. Where there are several, none is followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

from scripts.walking.sources import Class, Function, Module, Sources

# Methods of values that the package does not define: `text.split()` is no call of ours.
_FOREIGN = frozenset(chain.from_iterable(map(dir, (str, bytes, list, dict, set, tuple, int, Path))))


@dataclass
class Walk:
    """The files that a parameter comes through, in order; one that is entered from itself stands once."""

    stays: list[str] = field(default_factory=list)
    _read: set[tuple[ast.AST, str]] = field(default_factory=set)
    _passes_on: dict[tuple[ast.AST, str], bool] = field(default_factory=dict)

    @property
    def rooms(self) -> int:
        """Different files."""
        return len(set(self.stays))

    @property
    def returns(self) -> int:
        """Stays in a file in which the walk had been before."""
        return len(self.stays) - self.rooms

    def climbs(self, layers: Sequence[Sequence[str]]) -> int:
        """Steps from a file to one in a higher layer; `layers`: packages, from the top to the bottom."""
        depths = [depth for file in self.stays if (depth := _depth(file, layers)) is not None]
        return sum(after < before for before, after in pairwise(depths))

    def enter(self, function: Function, *parameters: str) -> None:
        """Comes into a function, one of whose parameters holds what is followed."""
        here = function.node, parameters[0]
        if here not in self._passes_on:
            self._passes_on[here] = True  # one that calls itself does
            self._passes_on[here] = _Reading(None, function, *parameters).passes_on
        if self.stays and not self._passes_on[here]:
            return
        if not self.stays or self.stays[-1] != function.module.file:
            self.stays.append(function.module.file)
        if here not in self._read:
            self._read.add(here)
            _Reading(self, function, *parameters)


def follow(sources: Sources, file: str, name: str, parameter: str) -> Walk:
    """The walk of one parameter. Raises LookupError where there is no such function or parameter."""
    function = sources.function(file, name)
    if parameter not in function.parameters:
        raise LookupError(f"{name} in {file} has no parameter {parameter}; it has {', '.join(function.parameters)}")
    walk = Walk()
    walk.enter(function, parameter)
    return walk


def _depth(file: str, layers: Sequence[Sequence[str]]) -> int | None:
    """The number of the layer that a file is in, counted from the top; None of one in no layer."""
    module = f"{file.removesuffix('.py').replace('/', '.')}."
    return next((n for n, packages in enumerate(layers) if any(module.startswith(f"{p}.") for p in packages)), None)


class _Reading(ast.NodeVisitor):
    """One function, read from its first line to its last. Without a walk it only finds whether it `passes_on`."""

    def __init__(self, walk: Walk | None, function: Function, *parameters: str) -> None:
        self.passes_on = False
        self._walk, self._module, self._held = walk, function.module, set(parameters)
        self._types = {name: self._module.class_of(kind) for name, kind in function.annotations.items()}
        if function.owner is not None and not function.is_static:
            self._types[function.positional[0]] = function.owner
        for line in function.node.body:
            self.visit(line)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text: what it tells of the parameter is no way of it."""

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value)
        function, first = self._called(node.func)
        arguments = (*node.args, *(one.value for one in node.keywords))
        if function is None:
            self.passes_on |= self._is_type(node.func) and any(map(self._holds, arguments))
        elif taking := tuple(self._taking(function, first, node)):
            self.passes_on = True
            if self._walk is not None:
                self._walk.enter(function, *taking)
        for value in arguments:
            self.visit(value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.passes_on |= self._holds(node.value)
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._give(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._give(node.target, node.value)

    visit_AugAssign = visit_NamedExpr = visit_AnnAssign  # noqa: N815 - names of ast

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        self.visit(node.iter)
        self._give(node.target, node.iter)
        for inner in node.ifs if isinstance(node, ast.comprehension) else (*node.body, *node.orelse):
            self.visit(inner)

    visit_AsyncFor = visit_comprehension = visit_For  # noqa: N815 - names of ast

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._give(node.optional_vars, node.context_expr)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for one in node.generators:
            self.visit(one)
        for value in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(value)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp  # noqa: N815 - names of ast

    def _give(self, target: ast.expr, value: ast.expr) -> None:
        """The names of an assignment hold what its value holds, and are of its class."""
        if isinstance(target, ast.Tuple | ast.List):
            self._give(target.elts[0], value)
            return
        if isinstance(target, ast.Name):
            self._types[target.id] = self._type_of(value)
        if self._holds(value):
            self.passes_on = True
            self._held.update(_names(target))

    def _holds(self, value: ast.AST) -> bool:
        """Whether a value is what is followed, a part of it, or made of it."""
        if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in self._held:
            return True
        return any(map(self._holds, self._parts(value)))

    def _parts(self, value: ast.AST) -> Iterator[ast.AST]:
        """The parts of an expression that its value is made of."""
        if isinstance(value, ast.Call):
            yield from self._made_of(value)
        elif isinstance(value, ast.IfExp):
            yield from (value.body, value.orelse)
        elif isinstance(value, ast.comprehension):
            yield value.iter
        elif not isinstance(value, ast.Compare | ast.JoinedStr) and not _is_negation(value):
            yield from ast.iter_child_nodes(value)

    def _made_of(self, call: ast.Call) -> Iterator[ast.AST]:
        """What the result of a call is made of: its object, or its first argument."""
        function, first = self._called(call.func)
        if isinstance(self._module.meant(call.func), Class):
            return
        if isinstance(call.func, ast.Attribute) and (function is None or first is not None):
            yield call.func.value
        if function is not None and first is None:
            yield from call.args[:1]
        if function is None and self._is_type(call.func):
            yield from (*call.args, *(one.value for one in call.keywords))

    def _is_type(self, name: ast.expr) -> bool:
        """`Path`, `RewardSettings`; and `replace`, which makes an object of the same type."""
        last = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
        return last[:1].isupper() or last == "replace"

    def _taking(self, function: Function, first: ast.expr | None, call: ast.Call) -> Iterator[str]:
        """The parameters of a function that are given what is held. `first`: what is given ahead of the arguments."""
        given = [*((first,) if first is not None else ()), *call.args]
        if first is not None and self._is_made(first):
            yield function.positional[0]
        for name, value in zip(function.positional, given, strict=False):
            if self._holds(value):
                yield name
        for keyword in call.keywords:
            if keyword.arg in function.parameters and self._holds(keyword.value):
                yield keyword.arg

    def _is_made(self, value: ast.expr) -> bool:
        """`Reader(held)`, an object that its own `__init__` made of what is held, whose method is called at once."""
        if not isinstance(value, ast.Call) or not isinstance(made := self._module.meant(value.func), Class):
            return False
        return made.method("__init__") is not None and any(map(self._holds, value.args))

    def _called(self, name: ast.expr) -> tuple[Function | None, ast.expr | None]:
        """The function that is called, and what is given for its first parameter ahead of the arguments."""
        found = None if isinstance(name, ast.Name) and name.id in self._types else self._module.meant(name)
        if isinstance(found, Class):
            return found.method("__init__"), ast.Constant(None)
        if isinstance(found, Function):
            return found, ast.Constant(None) if found.owner is not None and not found.is_static else None
        if not isinstance(name, ast.Attribute) or isinstance(found, Module):
            return None, None
        owner = self._type_of(name.value)
        method = owner.method(name.attr) if owner is not None else None
        if (owner is None or (method is not None and method.is_stub)) and name.attr not in _FOREIGN:
            method = self._module.sources.only_method(name.attr)
        return method, None if method is None or method.is_static else name.value

    def _type_of(self, value: ast.expr) -> Class | None:
        """The class of a value, where an annotation tells it."""
        if isinstance(value, ast.Name):
            return self._types.get(value.id)
        if isinstance(value, ast.Attribute):
            owner = self._type_of(value.value)
            return owner.type_of(value.attr) if owner is not None else None
        if isinstance(value, ast.Await | ast.NamedExpr):
            return self._type_of(value.value)
        if isinstance(value, ast.IfExp):
            return self._type_of(value.body) or self._type_of(value.orelse)
        if not isinstance(value, ast.Call):
            return None
        if isinstance(value.func, ast.Name) and value.func.id == "replace" and value.args:
            return self._type_of(value.args[0])
        made = self._module.meant(value.func)
        if isinstance(made, Class):
            return made
        function, _ = self._called(value.func)
        return function.module.class_of(function.node.returns) if function is not None else None


def _is_negation(value: ast.AST) -> bool:
    return isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)


def _names(target: ast.expr) -> Iterator[str]:
    """Those that an assignment gives a value; `self.path` is one, an element of a list is its list."""
    if isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _names(one)
