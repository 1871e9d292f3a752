"""The functions and classes of a package, by its sources alone: which one does a name in a file mean?"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method. `owner`: the class that a method is of."""

    module: Module
    node: FunctionNode
    owner: Class | None = None

    @property
    def is_stub(self) -> bool:
        """A method that only says what others do: a docstring or `...`, or a raise."""
        return all(isinstance(line, ast.Raise | ast.Pass) or _is_constant(line) for line in self.node.body)

    @property
    def is_static(self) -> bool:
        """Its first parameter is no object."""
        return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in self.node.decorator_list)

    @property
    def positional(self) -> list[str]:
        """The parameters that take a value by position, `self` included."""
        return [one.arg for one in (*self.node.args.posonlyargs, *self.node.args.args)]

    @property
    def parameters(self) -> list[str]:
        """All of them, but for `*args` and `**values`."""
        return [*self.positional, *(one.arg for one in self.node.args.kwonlyargs)]

    @property
    def annotations(self) -> dict[str, ast.expr]:
        """The annotated parameters."""
        arguments = self.node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return {one.arg: one.annotation for one in every if one.annotation is not None}


def _is_constant(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


@dataclass(frozen=True, eq=False)
class Class:
    """A class with its methods, and the annotations of its fields and properties."""

    module: Module
    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)
    fields: dict[str, ast.expr] = field(default_factory=dict)

    def method(self, name: str) -> Function | None:
        """Its own, or that of the nearest base."""
        if name in self.methods:
            return self.methods[name]
        for base in self.node.bases:
            above = self.module.meant(base)
            if isinstance(above, Class) and (found := above.method(name)) is not None:
                return found
        return None

    def type_of(self, name: str) -> Class | None:
        """The class of a field or property."""
        annotation = self.fields.get(name)
        return self.module.class_of(annotation) if annotation is not None else None


@dataclass(frozen=True, eq=False)
class Module:
    """One file. `names`: what is defined or imported at its top, or imported within a function."""

    sources: Sources
    file: str
    tree: ast.Module
    names: dict[str, Function | Class | tuple[str, str]] = field(default_factory=dict)

    def meant(self, name: ast.expr) -> Function | Class | Module | None:
        """What a name or a dotted name stands for; None for what is not of the package."""
        if isinstance(name, ast.Name):
            found = self.names.get(name.id)
            return self.sources.imported(*found) if isinstance(found, tuple) else found
        if isinstance(name, ast.Attribute):
            above = self.meant(name.value)
            if isinstance(above, Module):
                return above.meant(ast.Name(name.attr))
            if isinstance(above, Class):
                return above.method(name.attr)
        return None

    def class_of(self, annotation: ast.expr | None) -> Class | None:
        """The first class of the package that an annotation names: `Plan`, `Plan | None`, not `list[Plan]`."""
        if isinstance(annotation, ast.BinOp):
            return self.class_of(annotation.left) or self.class_of(annotation.right)
        found = self.meant(annotation) if annotation is not None else None
        return found if isinstance(found, Class) else None


class Sources:
    """All files below the folder of a package."""

    def __init__(self, package: Path) -> None:
        self._modules: dict[str, Module] = {}
        self.methods: dict[str, list[Function]] = defaultdict(list)
        for path in sorted(package.rglob("*.py")):
            file = path.relative_to(package.parent).as_posix()
            name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            self._modules[name] = self._read(Module(self, file, ast.parse(path.read_text())), name)

    def imported(self, module: str, name: str) -> Function | Class | Module | None:
        """What `from module import name` gives; an empty name is the module itself."""
        if not name:
            return self._modules.get(module)
        found = self._modules[module].meant(ast.Name(name)) if module in self._modules else None
        return found or self._modules.get(f"{module}.{name}")

    def function(self, file: str, name: str) -> Function:
        """`name` or `Class.method` in a file. Raises LookupError where there is none."""
        module = next((one for one in self._modules.values() if one.file == file), None)
        found = module.meant(ast.parse(name, mode="eval").body) if module is not None else None
        if not isinstance(found, Function):
            raise LookupError(f"{file} has no function {name}" if module is not None else f"there is no file {file}")
        return found

    def only_method(self, name: str) -> Function | None:
        """The one method of that name that does something, if there is exactly one."""
        found = [one for one in self.methods.get(name, ()) if not one.is_stub]
        return found[0] if len(found) == 1 else None

    def _read(self, module: Module, name: str) -> Module:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                module.names.update({one.asname or one.name: (node.module, one.name) for one in node.names})
            elif isinstance(node, ast.Import):
                module.names.update({one.asname: (one.name, "") for one in node.names if one.asname})
        for line in module.tree.body:
            if isinstance(line, FunctionNode):
                module.names[line.name] = Function(module, line)
            elif isinstance(line, ast.ClassDef):
                module.names[line.name] = self._class(module, line)
        return module

    def _class(self, module: Module, node: ast.ClassDef) -> Class:
        made = Class(module, node)
        for line in node.body:
            if isinstance(line, FunctionNode):
                made.methods[line.name] = Function(module, line, made)
                self.methods[line.name].append(made.methods[line.name])
                if line.returns is not None and any(
                    ast.unparse(one).endswith("property") for one in line.decorator_list
                ):
                    made.fields[line.name] = line.returns
            elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                made.fields[line.target.id] = line.annotation
        return made
