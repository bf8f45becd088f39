"""Which texts a database can hold, by its encoding: a text that it cannot hold equals nothing in it.

To send it one is an error, so it must be known before. Of encodings with one byte a character, Python and PostgreSQL
have the same tables; of others only ASCII is sure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

UTF8 = "UTF8"

_CODECS = {
    "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2",
    "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4",
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "ISO_8859_5": "iso8859-5",
    "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}


def is_sure(encoding: str, texts: pa.ChunkedArray) -> bool:
    """Whether it is known of each text if a database of this encoding can hold it."""
    return encoding == UTF8 or encoding in _CODECS or bool(pc.all(pc.string_is_ascii(texts)).as_py() in (True, None))


def can_hold(encoding: str, text: str) -> bool:
    """Whether a database of this encoding surely can hold the text."""
    if "\0" in text:
        return False
    if encoding == UTF8 or text.isascii():
        return True
    try:
        return encoding in _CODECS and bool(text.encode(_CODECS[encoding]))
    except UnicodeEncodeError:
        return False


def holdable(encoding: str, texts: pa.ChunkedArray) -> pa.Array:
    """Per text, whether a database of this encoding surely can hold it."""
    if encoding == UTF8:
        return pc.invert(pc.match_substring(texts, "\0"))
    return pa.array([can_hold(encoding, text) for text in texts.to_pylist()], pa.bool_())
