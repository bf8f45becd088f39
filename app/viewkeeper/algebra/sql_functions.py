"""How sqlglot writes the calls of functions: which node stands for which, and where it keeps the arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp


@dataclass(frozen=True)
class Written:
    """A node's function (or how to tell it), the names of its arguments in our order, and the list after them.

    ``flags`` are other parts of the node that say nothing here. A node with any part besides is refused.
    """

    name: str | Callable[[exp.Expression], str]
    args: tuple[str, ...] = ("this",)
    many: str = ""
    flags: frozenset[str] = field(default=frozenset())

    @property
    def parts(self) -> frozenset[str]:
        return self.flags | {*self.args, self.many}

    def function(self, node: exp.Expression) -> str:
        return self.name if isinstance(self.name, str) else self.name(node)

    def operands(self, node: exp.Expression) -> list[exp.Expression]:
        """The arguments that are there; a field that sqlglot takes for a word is a text."""
        given = [node.args[arg] for arg in self.args if node.args.get(arg) is not None]
        return [exp.Literal.string(g.name) if isinstance(g, exp.Var) else g for g in (*given, *self._list(node))]

    def _list(self, node: exp.Expression) -> list[exp.Expression]:
        return list(node.args.get(self.many) or []) if self.many else []


def _trim(node: exp.Expression) -> str:
    return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")


def _pad(node: exp.Expression) -> str:
    return "lpad" if node.args.get("is_left") else "rpad"


_TWO = ("this", "expression")

CALLS: dict[type[exp.Expression], Written] = {
    exp.Abs: Written("abs"),
    exp.Ascii: Written("ascii"),
    exp.BitLength: Written("bit_length"),
    exp.Ceil: Written("ceil"),
    exp.Coalesce: Written("coalesce", many="expressions"),
    exp.Concat: Written("concat", (), many="expressions", flags=frozenset({"safe", "coalesce"})),
    exp.ConcatWs: Written("concat_ws", (), many="expressions", flags=frozenset({"safe", "coalesce"})),
    exp.Extract: Written("extract", _TWO),
    exp.Floor: Written("floor"),
    exp.Greatest: Written("greatest", many="expressions", flags=frozenset({"ignore_nulls"})),
    exp.Least: Written("least", many="expressions", flags=frozenset({"ignore_nulls"})),
    exp.Left: Written("left", _TWO),
    exp.Length: Written("length"),
    exp.Lower: Written("lower"),
    exp.MD5: Written("md5"),
    exp.Nullif: Written("nullif", _TWO),
    exp.Pad: Written(_pad, ("this", "expression", "fill_pattern"), flags=frozenset({"is_left"})),
    exp.Repeat: Written("repeat", ("this", "times")),
    exp.Replace: Written("replace", ("this", "expression", "replacement")),
    exp.Reverse: Written("reverse"),
    exp.Right: Written("right", _TWO),
    exp.Round: Written("round", ("this", "decimals")),
    exp.Sign: Written("sign"),
    exp.SplitPart: Written("split_part", ("this", "delimiter", "part_index")),
    exp.Sqrt: Written("sqrt"),
    exp.StartsWith: Written("starts_with", _TWO),
    exp.StrPosition: Written("strpos", ("this", "substr")),
    exp.Substring: Written("substr", ("this", "start", "length")),
    exp.Translate: Written("translate", ("this", "from_", "to")),
    exp.Trim: Written(_trim, _TWO, flags=frozenset({"position"})),
    exp.Trunc: Written("trunc", ("this", "decimals")),
    exp.Upper: Written("upper"),
}

OTHER_NAMES = {"btrim": "trim", "ceiling": "ceil", "char_length": "length", "character_length": "length"}
"""Names of the same functions that sqlglot does not know."""
