"""Rows as PostgreSQL sends them → the rows of an answer, column by column; a row that fits no type is told of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.types import Column
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.postgres_questions import Question
from viewkeeper.managers.sources.postgres_values import Misfits, answer_column


def schema_of(question: Question) -> pa.Schema:
    """The columns of the answer."""
    return pa.schema([(column.name, column.type.arrow) for column in question.columns])


def typed(place: str, batch: pa.RecordBatch, question: Question, forgiving: bool) -> pa.RecordBatch:
    """The rows with the answer's types; those that do not fit are a SourceError, or left out."""
    if not question.columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(batch), pa.struct([])))
    arrays, wrong = [], set[int]()
    for array, column in zip(batch.columns, question.columns, strict=True):
        try:
            arrays.append(answer_column(array, column))
        except Misfits as misfits:
            if not forgiving:
                raise _misfit(place, question, column, misfits) from None
            wrong |= misfits.reasons.keys()
    if wrong:
        fit = np.setdiff1d(np.arange(len(batch)), sorted(wrong))
        return typed(place, batch.take(pa.array(fit)), question, forgiving)
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(question))


def _misfit(place: str, question: Question, column: Column, misfits: Misfits) -> SourceError:
    where = f"{place}: {question.ask.relation}.{column.name}"
    return SourceError.at(where, str(misfits), "correct the row, or leave the column out of the views")
