"""Settings of a database or a role that change how values come out of its log, where Debezium cannot overrule them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from viewkeeper.algebra.types import UNKNOWN, Column, Relation
from viewkeeper.managers.sources.postgres_catalog import quoted
from viewkeeper.managers.sources.postgres_session import Control

_SETTINGS = """
SELECT current_setting('extra_float_digits')::int, current_setting('bytea_output'), getdatabaseencoding(), current_user,
       current_database()
"""

_NO_ENCODING = "is in a database of encoding SQL_ASCII, which does not say what texts mean; give it another encoding"


def refuse_formats(control: Control, relations: Iterable[Relation]) -> Iterator[Relation]:
    """The relations, without the columns whose values the log would not tell as they are.

    The log is read under the defaults that a new connection has; this connection has not changed them.
    """
    digits, binary, encoding, role, database = control.row(_SETTINGS)
    default = f"ALTER ROLE {quoted(role)} IN DATABASE {quoted(database)} SET"
    wrong: dict[str, str] = {}
    if digits < 1:
        why = f"is a float, and extra_float_digits = {digits} rounds floats in the log"
        wrong |= dict.fromkeys(("float4", "float8"), f"{why}; {default} extra_float_digits = 1")
    if binary != "hex":
        wrong["bytea"] = f"is bytea, which cannot be read with bytea_output = {binary}; {default} bytea_output = hex"
    for relation in relations:
        columns = tuple(_checked(column, wrong) for column in relation.columns)
        unclear = _NO_ENCODING if encoding == "SQL_ASCII" else ""
        yield replace(relation, columns=columns, refused=relation.refused or unclear)


def _checked(column: Column, wrong: dict[str, str]) -> Column:
    if column.declared not in wrong or column.refused:
        return column
    return replace(column, type=UNKNOWN, refused=wrong[column.declared])
