"""The small changes that `run.py` makes to a module, as edits of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
    "floor": "ceil", "ceil": "floor",
}  # fmt: skip
# The order of their arguments makes no difference.
_COMMUTE = {
    "min", "max", "minimum", "maximum", "equal", "array_equal", "and_", "or_", "lcm", "gcd", "suppress", "swapaxes",
}  # fmt: skip
# What is said to people is no behaviour.
_MESSAGES = ("Error", "warn", "data_changed_error", "rejected_rows_error", "did_you_mean")
_UNCHANGED = ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom | ast.ClassDef | ast.arguments
_UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "target", "targets", "type", "exc", "cause"}


@dataclass(frozen=True)
class Change:
    """Another value for one field of a node; `function` is None for a constant of the module."""

    function: str | None
    statement: ast.stmt
    parent: ast.AST
    field: str
    index: int | None
    new: object

    @property
    def lines(self) -> range:
        """The lines of the statement, of a compound one those of its head."""
        last = self.statement.end_lineno or self.statement.lineno
        if blocks := getattr(self.statement, "body", None):
            last = max(self.statement.lineno, blocks[0].lineno - 1)
        return range(self.statement.lineno, last + 1)

    def make(self) -> object:
        """Change the tree; return what was there."""
        return self._put(self.new)

    def describe(self) -> str:
        """Return the function and the first line of the statement as it reads after the change."""
        replaced = self.new if isinstance(self.new, ast.stmt) else None
        old = self.make()
        text = ast.unparse(replaced or self.statement).split("\n")[0]
        self._put(old)
        if replaced:
            text += f" for {ast.unparse(self.statement).splitlines()[0]}"
        return f"{self.function or 'module'}: {text}"

    def _put(self, new: object) -> object:
        values = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, new)
            return values
        old, values[self.index] = values[self.index], new
        return old


def find_changes(tree: ast.Module) -> Iterator[Change]:
    """Yield the changes of functions, methods and constants of a module, in their order."""
    for index, statement in enumerate(tree.body):
        match statement:
            case ast.FunctionDef(name=name):
                yield from _in_function(statement, name)
            case ast.ClassDef(name=name, body=members):
                for member in members:
                    if isinstance(member, ast.FunctionDef):
                        yield from _in_function(member, f"{name}.{member.name}")
            case ast.Assign(value=ast.Constant() | ast.BinOp()):
                yield from _in_node(tree, "body", index, None, statement)


def _in_function(function: ast.FunctionDef, name: str) -> Iterator[Change]:
    for index in range(len(function.body)):
        yield from _in_node(function, "body", index, name, function)


def _in_node(
    parent: ast.AST, field: str, index: int | None, function: str | None, statement: ast.stmt
) -> Iterator[Change]:
    value = getattr(parent, field)
    node = value if index is None else value[index]
    if not isinstance(node, ast.AST) or _is_unchanged(node):
        return
    statement = node if isinstance(node, ast.stmt) else statement
    for new in (*_instead_of_statement(node), *_instead_of_value(node), *_instead_of_operation(node)):
        yield Change(function, statement, parent, field, index, ast.copy_location(new, node))
    for name, place, part in _other_parts(node):
        yield Change(function, statement, node, name, place, part)
    for name, child in ast.iter_fields(node):
        if name in _UNCHANGED_FIELDS:
            continue
        for place in range(len(child)) if isinstance(child, list) else (None,):
            yield from _in_node(node, name, place, function, statement)


def _is_unchanged(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant()) | ast.keyword(arg="strict"):  # docstrings, and what zip is told of its arguments
            return True
        case ast.Call():
            return _name(node).endswith(_MESSAGES)
        case _:
            return isinstance(node, _UNCHANGED)


def _instead_of_statement(node: ast.AST) -> Iterator[ast.stmt]:
    match node:
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(name)], value=value):
            if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
                yield ast.Pass()
        case ast.Continue():
            yield ast.Pass()
            yield ast.Break()


def _instead_of_value(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
            if 0 < value <= 16:
                yield ast.Constant(value - 1)
        case ast.Constant(str() as value):
            yield ast.Constant(f"{value}?")
        case ast.Name(name) if name in _NAMES:
            yield ast.Name(_NAMES[name], ast.Load())
        case ast.Attribute(value, name) if name in _NAMES:
            yield ast.Attribute(value, _NAMES[name], ast.Load())


def _instead_of_operation(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield operand
        case ast.IfExp(_, yes, no):
            yield yes
            yield no
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
            for place in range(len(values)):
                rest = values[:place] + values[place + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.Call(function, [first, second, *others] as arguments, keywords) if _name(node) not in _COMMUTE:
            if not any(isinstance(argument, ast.Starred) for argument in arguments):
                yield ast.Call(function, [second, first, *others], keywords)
    if isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, "strict"):
                yield ast.Call(node.func, node.args, node.keywords[:place] + node.keywords[place + 1 :])


def _other_parts(node: ast.AST) -> Iterator[tuple[str, int | None, object]]:
    match node:
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "value", None, ast.copy_location(ast.Constant(None), node)
        case ast.If(test) | ast.While(test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield "test", None, _not(test)
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield "op", None, _OPERATORS[type(operator)]()
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                yield "ops", place, _COMPARISONS[type(operator)]()
        case ast.Slice():
            yield from ((name, None, None) for name in ("lower", "upper", "step") if getattr(node, name))
        case ast.comprehension(ifs=conditions):
            yield from (("ifs", place, _not(condition)) for place, condition in enumerate(conditions))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _not(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), node), node)
