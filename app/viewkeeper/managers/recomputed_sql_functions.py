"""The functions that a recomputed view may call: those whose result depends on nothing but their arguments."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = _words("+ - * / // % ^ ** & | << >> ~ || ~~ !~~ ~~* !~~* ~~~ ^@ @")

_NUMBERS = """abs ceil ceiling floor round trunc sign sqrt cbrt exp ln log log2 log10 pow power mod greatest least
    gcd lcm pi degrees radians sin cos tan asin acos atan atan2 xor isnan isinf isfinite even factorial"""

_TEXTS = """lower upper lcase ucase length len char_length character_length strlen octet_length bit_length substring
    substr trim ltrim rtrim left right lpad rpad repeat replace reverse concat concat_ws starts_with ends_with prefix
    suffix contains instr strpos position split_part translate ascii chr unicode ord regexp_matches regexp_full_match
    regexp_replace regexp_extract like_escape not_like_escape ilike_escape not_ilike_escape hex unhex to_hex from_hex
    encode decode base64 to_base64 from_base64 md5 sha1 sha256 format printf levenshtein"""

_TIMES = """date_part datepart date_trunc datetrunc date_diff datediff date_sub datesub date_add year month day
    dayofmonth hour minute second millisecond microsecond week weekofyear yearweek quarter decade century dayofweek
    weekday isodow isoyear dayofyear dayname monthname last_day make_date make_timestamp make_timestamptz strftime
    epoch epoch_ms epoch_us to_timestamp timezone time_bucket to_years to_months to_weeks to_days to_hours to_minutes
    to_seconds to_milliseconds to_microseconds to_quarters to_decades to_centuries"""

_CONDITIONS = "nullif ifnull if coalesce"

SCALARS = OPERATORS | _words(f"{_NUMBERS} {_TEXTS} {_TIMES} {_CONDITIONS}")

SUMMING = _words("sum avg mean stddev stddev_samp stddev_pop variance var_samp var_pop")
"""Aggregates that add floats up, where the order of the rows shows in the last digits."""

COUNTING = _words("count count_star count_if min max bool_and bool_or bit_and bit_or bit_xor median")

QUANTILES = frozenset({"quantile_cont", "quantile_disc"})

JOINING = frozenset({"string_agg", "group_concat", "listagg"})
"""Aggregates whose result is in the order of the rows."""

AGGREGATES = SUMMING | COUNTING | QUANTILES | JOINING

ONE_ARGUMENT = frozenset({"min", "max"}) | SUMMING
"""Of these, the forms with more arguments give lists, or are something else."""

PEERS = frozenset({"WINDOW_RANK", "WINDOW_RANK_DENSE", "WINDOW_DENSE_RANK", "WINDOW_PERCENT_RANK", "WINDOW_CUME_DIST"})
"""Window functions that give rows of equal order the same value."""

ORDERED = _words(
    """WINDOW_ROW_NUMBER WINDOW_NTILE WINDOW_LAG WINDOW_LEAD WINDOW_FIRST_VALUE WINDOW_LAST_VALUE
    WINDOW_NTH_VALUE"""
)
"""Window functions that tell rows of equal order apart, and so need an order without such rows."""

NOT_THE_SAME = _words(
    """random setseed uuid gen_random_uuid uuidv4 uuidv7 now get_current_timestamp get_current_time today current_date
    current_time current_timestamp transaction_timestamp localtime localtimestamp current_localtime
    current_localtimestamp nextval currval txid_current age current_user session_user user current_role
    current_schema current_schemas current_catalog current_database current_query current_setting version"""
)
"""Functions, and names that DuckDB takes for functions, whose value is another one at another time."""

ANY_ROW = _words(
    """first last any_value arbitrary first_value last_value arg_min arg_max argmin argmax min_by max_by arg_min_null
    arg_max_null mode list array_agg histogram"""
)
"""Aggregates whose result depends on which row comes first."""

LIKE = _words("~~ !~~ ~~* !~~* ~~~ ^@ ||")
"""Operators that cannot fail."""

SAME_TYPE = frozenset({"greatest", "least", "ifnull", "nullif", "if"})
"""Functions whose result has the type of their arguments."""
