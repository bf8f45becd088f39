"""Random SQL expressions over the columns of one table, as texts that a view and PostgreSQL both can be given.

``RULES`` is the grammar. To have a function tried, add a line: ``rule("text", "lower({})", "text")`` says that it takes
a text and gives one. Operands are put in parentheses only sometimes, so that precedence is tried as well.
"""
# ruff: noqa: E501  (a table reads best with a rule per line)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

COLUMNS: Mapping[str, tuple[str, str, str]] = {
    "i": ("int", "int4", "0|1|-1|2|3|-7|10|100|2147483647|-2147483648"),
    "j": ("int", "int8", "0|1|5|-5|7|9007199254740993|9223372036854775807|-9223372036854775808"),
    "s": ("int", "int2", "0|1|-3|32767|-32768"),
    "n": ("dec", "numeric(10,2)", "0|0.01|1.00|1.50|-2.50|3.45|99999999.99|-12.34"),
    "m": ("dec", "numeric(12,4)", "0|1|0.0001|2.5000|-0.5000|1.4950|12345678.1234"),
    "v": ("bare", "numeric", "0|1.50|1.5|-2.5|7.000|1e-20|123456789012345678901234567890123456789012.5|99.99"),
    "f": (
        "float",
        "float8",
        "0|1|-1|0.1|2.5|-2.5|1e15|1e16|123456.789|1e-5|9007199254740992|31525197391593472|1e23|1e300|NaN|Infinity",
    ),
    "g": ("float", "float8", "0|1|0.5|3.5|1e20|-1e-7|0.30000000000000004|-Infinity"),
    "r": ("real", "float4", "0|1|1.1|0.1|-2.5|16777216|1000000|1e-5"),
    "t": ("text", "text", "|a|A|ab|aB|b |%|a%|a_c|abc|a\\c|a\\%|漢|Z|12| 7 |1.5|true|no|NULL"),
    "u": ("text", "varchar(10)", "|a|b|abc|a%c|\\|\\\\|_|0|-3|1e3|yes|2024-01-05"),
    "b": ("bool", "bool", "true|false"),
    "c": ("bool", "bool", "true|false"),
    "d": ("date", "date", "2024-01-05|2024-02-29|1999-12-31|2024-12-31|1970-01-01"),
    "ts": ("ts", "timestamp", "2024-01-05 00:00|2024-01-05 12:30:00.5|1999-12-31 23:59:59.999999|2024-02-29 01:00"),
    "tz": ("tz", "timestamptz", "2024-01-05 00:00+00|2024-01-05 12:30:00.5+02|2000-01-01 00:00-08"),
    "k": ("char", "char(4)", "|a|ab|abcd|a b"),
    "e": ("enum", "mood", "sad|ok|happy"),
    "w": ("uuid", "uuid", "a1111111-1111-1111-1111-11111111111f|00000000-0000-0000-0000-000000000000"),
    "y": ("bytes", "bytea", "\\x|\\x61|\\x00ff|\\x6162"),
    "x": ("citext", "citext", "|a|A|AB|ab|b"),
    "q": ("json", "jsonb", '1|1.0|"a"|{"a": 1}|null'),
}
"""Per column: what kind of operand it is, its type in PostgreSQL, and values (NULL besides)."""

LITERALS: Mapping[str, str] = {
    "int": "0|1|2|3|7|10|-1|2147483648|9223372036854775807|-9223372036854775808|NULL",
    "dec": "0.5|1.5|2.50|.25|10.|1e2|1.5e-3|9223372036854775808|-0.01",
    "bare": "CAST(1.5 AS NUMERIC)|CAST('12.50' AS NUMERIC)",
    "float": "CAST(0.1 AS DOUBLE PRECISION)|CAST(3 AS DOUBLE PRECISION)|1e0::float8|CAST('1e15' AS FLOAT)|-2.5::float8",
    "real": "CAST(1.1 AS REAL)",
    "finite": "CASE WHEN f < 1e290 THEN f END|CASE WHEN g > -1e290 THEN g END|2.5::float8",  # no decimal is NaN here
    "days": "0|1|-1|30|366|-1000|length('abc')",  # dates of views end at the years 1 and 9999
    "year": "1|1999|2024|extract(year FROM d)::int",
    "text": r"''|'a'|'A'|'ab'|'%'|'a%'|'_b'|'a\%'|'\'|'a\\c'|'b '|'12'|' 7'|'true'|'x''y'|NULL|E'a\tb'|$$a$$",
    "bool": "TRUE|FALSE|true|NULL|'t'::boolean|CAST('no' AS BOOLEAN)",
    "date": "DATE '2024-01-05'|'2024-02-29'::date|CAST('1999-12-31' AS DATE)",
    "ts": "TIMESTAMP '2024-01-05 12:30:00.5'|TIMESTAMP '2024-01-05 12:30:00+02'|'2024-02-29 01:00'::timestamp",
    "tz": "TIMESTAMPTZ '2024-01-05 12:30:00+02'|TIMESTAMP WITH TIME ZONE '2024-01-05 00:00:00+00'",
    "char": "CAST('ab' AS CHAR(4))|'ab  '::char(4)",
    "enum": "'ok'|'sad'",
    "uuid": "'A1111111-1111-1111-1111-11111111111F'|'a1111111-1111-1111-1111-11111111111f'",
    "bytes": "CAST('a' AS BYTEA)",
    "citext": "'a'|'AB'",
    "json": "'1'|'null'",
}

ALIKE: Mapping[str, Sequence[str]] = {
    "num": ("int", "int", "dec", "float", "real"),
    "any": ("int", "dec", "float", "text", "bool", "date", "ts", "real", "char", "enum", "uuid", "citext", "json", "bytes"),
    "time": ("date", "ts", "tz"),
    "texts": ("text", "text", "char", "citext", "enum", "uuid"),
}  # fmt: skip
"""Names for any one of several kinds."""


@dataclass(frozen=True)
class Rule:
    """How an expression of a kind is made from others."""

    kind: str
    template: str
    operands: tuple[str, ...]


def rule(kind: str, template: str, *operands: str) -> Rule:
    return Rule(kind, template, operands)


_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "!=")

RULES: list[Rule] = [
    *(rule("bool", f"{{}} {op} {{}}", kind, kind) for op in _COMPARISONS for kind in ("num", "text", "time", "bool")),
    *(rule("bool", f"{{}} {op} {{}}", kind, kind) for op in ("=", "<") for kind in ("char", "enum", "uuid", "citext")),
    *(rule("bool", f"{{}} {op} {{}}", kind, other) for op in ("=", "<") for kind, other in
      (("int", "dec"), ("int", "float"), ("dec", "float"), ("real", "dec"), ("real", "real"), ("char", "text"),
       ("citext", "text"), ("json", "json"), ("bytes", "bytes"), ("date", "ts"), ("any", "any"))),
    *(rule("bool", f"{{}} IS {no}DISTINCT FROM {{}}", kind, kind) for no in ("", "NOT ") for kind in ("num", "text", "any")),
    *(rule("bool", f"{{}} IS {word}", "any") for word in ("NULL", "NOT NULL")),
    *(rule("bool", f"{{}} {word}", "any") for word in ("ISNULL", "NOTNULL")),
    *(rule("bool", f"{{}} IS {no}{word}", "bool") for no in ("", "NOT ") for word in ("TRUE", "FALSE", "UNKNOWN")),
    *[rule("bool", "NOT {}", "bool")] * 3,
    *[rule("bool", "{} AND {}", "bool", "bool")] * 3,
    *[rule("bool", "{} OR {}", "bool", "bool")] * 3,
    *(rule("bool", f"{{}} {no}BETWEEN {how}{{}} AND {{}}", kind, kind, kind)
      for no in ("", "NOT ") for how in ("", "SYMMETRIC ") for kind in ("num", "text", "time")),
    *(rule("bool", f"{{}} {no}IN ({{}}, {{}})", kind, kind, kind)
      for no in ("", "NOT ") for kind in ("num", "text", "time", "texts", "bool")),
    *(rule("bool", f"{{}} {no}{like} {{}}", kind, "text")
      for no in ("", "NOT ") for like in ("LIKE", "LIKE", "ILIKE", "SIMILAR TO") for kind in ("text", "text", "texts")),
    *(rule("bool", f"{{}} {no}LIKE {{}} ESCAPE '{escape}'", "text", "text") for no in ("", "NOT ") for escape in ("!", "", "_")),
    *(rule("bool", f"{{}} {op} {{}}", "text", "text") for op in ("~", "!~", "~~", "!~~")),
    rule("bool", "({}, {}) = ({}, {})", "int", "text", "int", "text"),
    rule("bool", "CAST({} AS BOOLEAN)", "int"),
    rule("bool", "CAST({} AS BOOLEAN)", "text"),
    *(rule("int", f"{{}} {op} {{}}", "int", "int") for op in "+-*/%"),
    *(rule("dec", f"{{}} {op} {{}}", "dec", kind) for op in "+-*%" for kind in ("dec", "int")),
    *(rule("dec", f"{{}} {op} {{}}", "int", "dec") for op in "+-*%"),
    *(rule("float", f"{{}} {op} {{}}", "float", "num") for op in "+-*/"),
    *(rule("float", f"{{}} {op} {{}}", "num", "float") for op in "+-*/"),
    rule("float", "{} ^ {}", "float", "float"),
    *(rule(kind, "- {}", kind) for kind in ("int", "dec", "float", "real")),
    *(rule(kind, "+ {}", kind) for kind in ("int", "dec")),
    rule("real", "{} + {}", "real", "real"),
    rule("float", "{} + {}", "real", "num"),
    rule("int", "{} - {}", "date", "date"),
    rule("date", "{} + {}", "date", "days"),
    rule("date", "{} - {}", "date", "days"),
    *[rule("text", "{} || {}", "text", "text")] * 3,
    rule("text", "{} || {}", "text", "any"),
    rule("text", "{} || {}", "any", "text"),
    *(rule(kind, "CASE WHEN {} THEN {} ELSE {} END", "bool", kind, kind) for kind in ("int", "dec", "float", "text", "date", "real")),
    *(rule(kind, "CASE {} WHEN {} THEN {} END", "num", "num", kind) for kind in ("int", "text")),
    *(rule(kind, "coalesce({}, {})", kind, kind) for kind in ("int", "dec", "float", "text", "bool", "ts", "real", "char", "citext")),
    rule("num", "coalesce({}, {})", "num", "num"),
    *(rule(kind, "nullif({}, {})", kind, kind) for kind in ("int", "text", "date", "citext", "char")),
    *(rule("int", f"CAST({{}} AS {word})", kind) for word in ("INTEGER", "BIGINT", "SMALLINT") for kind in ("dec", "text", "bool", "int")),
    rule("int", "{}::int", "dec"),
    rule("int", "{}::bigint", "text"),
    *(rule("float", f"CAST({{}} AS {word})", kind) for word in ("DOUBLE PRECISION", "FLOAT", "FLOAT8", "FLOAT(53)", "FLOAT(10)")
      for kind in ("int", "dec", "text", "real")),
    *(rule("real", f"CAST({{}} AS {word})", kind) for word in ("REAL", "FLOAT4") for kind in ("dec", "float")),
    *(rule("dec", f"CAST({{}} AS {word})", kind) for word in ("NUMERIC(10,2)", "DECIMAL(5,1)", "NUMERIC(8)", "NUMERIC(38,4)")
      for kind in ("int", "dec", "text")),
    rule("dec", "{}::numeric(12,3)", "dec"),
    *(rule("text", f"CAST({{}} AS {word})", kind) for word in ("TEXT", "VARCHAR", "VARCHAR(3)", "CHAR(3)", "CHAR")
      for kind in ("int", "dec", "float", "bool", "date", "text", "any", "texts")),
    *(rule("text", "{}::text", kind) for kind in ("int", "float", "any", "real", "ts", "tz")),
    *(rule("date", "CAST({} AS DATE)", kind) for kind in ("ts", "tz", "date")),
    *(rule(kind, f"CAST({{}} AS {word})", other) for kind, word in
      (("ts", "TIMESTAMP"), ("ts", "TIMESTAMP(0)"), ("ts", "TIMESTAMP(3)"), ("tz", "TIMESTAMPTZ"), ("ts", "TIMESTAMP(6)"))
      for other in ("date", "ts", "tz")),
    rule("bytes", "CAST({} AS BYTEA)", "text"),
    # Functions.
    *(rule(kind, "abs({})", kind) for kind in ("int", "dec", "float", "real")),
    rule("int", "length({})", "texts"),
    rule("text", "substr({}, {})", "text", "int"),
    rule("text", "substring({}, {}, {})", "text", "int", "int"),
    *(rule("text", f"{function}({{}})", "text") for function in ("trim", "ltrim", "rtrim", "lower", "upper")),
    *(rule("dec", f"{function}({{}}, {places})", "dec") for function in ("round", "trunc") for places in (-1, 0, 1, 3)),
    *(rule("dec", f"round({{}}, {places})", "int") for places in (-1, 2)),
    *(rule(kind, f"{function}({{}})", kind) for function in ("round", "trunc", "floor", "ceil", "sign") for kind in ("dec", "float", "bare")),
    *(rule("float", f"{function}({{}})", "int") for function in ("round", "trunc", "floor", "ceil", "sign", "sqrt")),
    rule("float", "sqrt({})", "float"),
    rule("int", "mod({}, {})", "int", "int"),
    rule("dec", "mod({}, {})", "dec", "num"),
    *[rule("dec", "{} / {}", "dec", "dec")] * 2,
    *(rule("dec", template, one, other) for template in ("{} / {}", "CAST({} / {} AS NUMERIC(30,12))")
      for one, other in (("dec", "int"), ("int", "dec"))),
    *(rule("bool", "{} / {} < {}", one, "dec", "num") for one in ("dec", "int")),
    *(rule("int", f"CAST({{}} AS {word})", "float") for word in ("BIGINT", "INTEGER")),
    *(rule("dec", f"CAST({{}} AS {word})", "finite") for word in ("NUMERIC(10,2)", "NUMERIC(38,12)")),
    *(rule("bool", f"{{}} {op} {{}}", "bare", kind) for op in ("=", "<", ">=", "<>") for kind in ("bare", "dec", "int", "float")),
    *(rule("bare", f"{{}} {op} {{}}", "bare", kind) for op in "+-*%" for kind in ("bare", "dec", "int")),
    *(rule("dec", f"CAST({{}} AS {word})", "bare") for word in ("NUMERIC(10,2)", "NUMERIC(38,10)") for _ in range(3)),
    *(rule("bare", "CAST({} AS NUMERIC)", kind) for kind in ("dec", "int", "finite")),
    *(rule(kind, "CAST({} AS " + word + ")", "bare") for kind, word in (("int", "BIGINT"), ("float", "FLOAT"), ("text", "TEXT"))),
    *(rule(kind, f"{function}({{}}, {{}})", kind, kind) for function in ("greatest", "least", "coalesce")
      for kind in ("int", "dec", "float", "bare", "date", "ts")),
    rule("dec", "coalesce({}, {})", "dec", "int"),
    rule("bare", "abs({})", "bare"),
    rule("bool", "{} IN ({}, {})", "bare", "dec", "bare"),
    *(rule("int", f"{function}({{}})", "text") for function in ("char_length", "octet_length", "bit_length", "ascii")),
    *(rule("text", f"{function}({{}})", "text") for function in ("reverse", "md5", "btrim")),
    *(rule("text", f"{function}({{}}, {{}})", "text", "text") for function in ("ltrim", "rtrim", "btrim", "trim")),
    *(rule("text", f"trim({side} {{}} FROM {{}})", "text", "text") for side in ("BOTH", "LEADING", "TRAILING")),
    *(rule("text", f"{function}({{}}, {{}})", "text", "days") for function in ("left", "right")),
    *(rule("text", f"{function}({{}}, {count})", "text") for function in ("repeat", "lpad", "rpad") for count in (-1, 0, 3)),
    *(rule("text", f"{function}({{}}, 5, {{}})", "text", "text") for function in ("lpad", "rpad")),
    rule("int", "strpos({}, {})", "text", "text"),
    rule("int", "position({} IN {})", "text", "text"),
    rule("bool", "starts_with({}, {})", "text", "text"),
    *(rule("text", f"{function}({{}}, {{}}, {{}})", "text", "text", "text") for function in ("replace", "translate", "concat")),
    rule("text", "split_part({}, {}, {})", "text", "text", "int"),
    *(rule("text", "concat({}, {})", kind, "any") for kind in ("text", "bool", "dec", "float")),
    rule("text", "concat_ws({}, {}, {})", "text", "any", "text"),
    *(rule("dec", f"extract({field} FROM {{}})", kind) for kind in ("date", "ts", "tz")
      for field in ("YEAR", "month", "week", "isoyear", "dow", "doy", "quarter", "epoch", "century")),
    *(rule("dec", f"extract({field} FROM {{}})", kind) for kind in ("ts", "tz") for field in ("hour", "second", "milliseconds")),
    *(rule("float", f"date_part('{field}', {{}})", "time") for field in ("year", "hour", "second", "epoch", "isodow")),
    *(rule("ts", f"date_trunc('{field}', {{}})", "time") for field in ("year", "quarter", "month", "week", "day", "hour", "second", "decade")),
    *(rule("text", f"to_char({{}}, '{form}')", "time") for form in ("YYYY-MM-DD", "HH24:MI:SS.US", "IYYY-IW ID", "Dy DD Mon", 'HH12"h"')),
    rule("date", "make_date({}, {}, {})", "year", "int", "int"),
]  # fmt: skip


@dataclass(frozen=True)
class Made:
    """An expression: how it is written around its operands."""

    kind: str
    template: str
    operands: tuple[Made, ...] = ()

    def __str__(self) -> str:
        parts = self.template.split("{}")
        assert len(parts) == len(self.operands) + 1, self.template
        return parts[0] + "".join(f"{operand}{part}" for operand, part in zip(self.operands, parts[1:], strict=True))

    @property
    def size(self) -> int:
        return 1 + sum(operand.size for operand in self.operands)

    def smaller(self) -> Iterator[Made]:
        """Expressions that are a little smaller: its operands, or with one operand made smaller or taken out."""
        yield from self.operands
        for place, operand in enumerate(self.operands):
            for less in operand.smaller():
                if less.kind == operand.kind:
                    yield Made(self.kind, self.template, (*self.operands[:place], less, *self.operands[place + 1 :]))


@dataclass(frozen=True)
class Maker:
    """Makes random expressions; the same ones for the same ``random``."""

    random: Random
    rules: Sequence[Rule] = tuple(RULES)

    def expression(self, depth: int = 3) -> Made:
        return self._rule(self.random.choice(self.rules), depth)

    def operand(self, kind: str, depth: int) -> Made:
        kind = self.random.choice(ALIKE.get(kind, (kind,)))
        fitting = [r for r in self.rules if r.kind == kind]
        if depth <= 0 or not fitting or self.random.random() < 0.4:
            return self._leaf(kind)
        made = self._rule(self.random.choice(fitting), depth)
        return Made(made.kind, "({})", (made,)) if self.random.random() < 0.6 else made

    def _rule(self, rule: Rule, depth: int) -> Made:
        return Made(rule.kind, rule.template, tuple(self.operand(kind, depth - 1) for kind in rule.operands))

    def _leaf(self, kind: str) -> Made:
        columns = [name for name, (of, _, _) in COLUMNS.items() if of == kind]
        if columns and self.random.random() < 0.7:
            return Made(kind, self.random.choice(columns))
        return Made(kind, self.random.choice(LITERALS[kind].split("|")))


def rows(random: Random, count: int) -> Iterator[list[str | None]]:
    """Random rows, as texts that PostgreSQL reads; the first has no NULL, the second nothing else."""
    for number in range(count):
        rarely = 0.0 if number == 0 else 1.0 if number == 1 else 0.15
        yield [None if random.random() < rarely else random.choice(v.split("|")) for _, _, v in COLUMNS.values()]
