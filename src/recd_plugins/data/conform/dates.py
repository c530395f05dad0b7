"""Conversion of dates, written as digits or as texts, to ms since 1970."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.spot import Spot, shown
from recd_plugins.data.conform.values import integers, plain
from recd_plugins.data.foreign import DateDigits, TextDates
from recd_plugins.errors import DataError

__all__ = [
    "DATE_DIGITS",
    "DAY_MS",
    "NOWHERE",
    "TEXT_DATES",
    "date_digits",
    "digits_to_ms",
    "text_dates",
    "texts_to_ms",
]

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DATE_DIGITS: tuple[DateDigits, ...] = get_args(DateDigits)
TEXT_DATES: tuple[TextDates, ...] = get_args(TextDates)
DAY_MS = 86_400_000
CURE = "Set another unit, or correct it where the table is made."
NOWHERE = Spot("", "")

ZONED = r"\d[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
"""An ISO 8601 time with a zone."""
NEARLY_ISO = (
    (r"^(\d{4})[./](\d\d)[./](\d\d)", r"\1-\2-\3"),
    (r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)", r"\1-\2-\3T\4:\5:\6"),
    (r"(:\d\d(?:\.\d+)?)\s*(?:UTC|GMT)$", r"\1Z"),
)
"""Times that Arrow does not read, such as BigQuery's 2024-05-01 13:00:00 UTC; as ISO 8601."""
ODD_ISO = r"^\d{4}[./]|^\d{8}T|(UTC|GMT)$"
PARTS = {
    "dd": r"(?P<day>\d{1,2})",
    "mm": r"(?P<month>\d{1,2})",
    "yy": r"(?P<year>\d\d)",
    "yyyy": r"(?P<year>\d{4})",
}
CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?"
)
TIME_OF_DAY = rf"(?:[\sT,]+{CLOCK})?$"
"""What may follow a date."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
ZONE = r"(?:\s*(?:(?P<zone>[+-]\d\d:?\d\d)|Z|UTC|GMT))?"
WEEKDAY = r"^(?:[A-Za-z]{3,9},?\s+)?"
NAMED_MONTHS = (
    # The order of RFC 2822 and Apache's logs, then of ctime and Twitter, then of prose.
    rf"{WEEKDAY}{PARTS['dd']}[\s/-]{MONTH}[\s/,-]+{PARTS['yyyy']}(?:[\sT,:]+{CLOCK}{ZONE})?$",
    rf"{WEEKDAY}{MONTH}\s+{PARTS['dd']}\s+{CLOCK}{ZONE}\s+{PARTS['yyyy']}$",
    rf"{WEEKDAY}{MONTH}\s+{PARTS['dd']}(?:,\s*|\s+){PARTS['yyyy']}(?:[\sT,]+{CLOCK}{ZONE})?$",
)
"""The possible orders of a date with the month's name."""
VERSION = r"^\d\.|\.\d\."
"""A version such as 4.10.12, not a date with a two-digit year: there, each part has two digits."""


def digits_to_ms(numbers: npt.NDArray[Any], unit: str, spot: Spot) -> pa.Array:
    """ms since 1970 of dates written as digits."""
    year_digits = unit.count("y")
    rest, fields = numbers.astype(np.int64), list[I64]()
    for _ in range((len(unit) - year_digits) // 2):
        rest, field = np.divmod(rest, 100)
        fields.insert(0, field)
    fields += [np.zeros_like(rest)] * (5 - len(fields))
    bad = (rest < 0) | (rest >= 10**year_digits)
    ms, bad = _since_1970(rest + 2000 * (year_digits == 2), *fields, bad=bad)
    if bad.any():
        raise spot.error_at(bad, _no_date(numbers[bad][0], unit), CURE)
    return pa.array(ms)


def texts_to_ms(texts: pa.Array, unit: str, spot: Spot) -> pa.Array:
    """ms since 1970, rounded down, of dates written as texts, with or without a time."""
    try:
        texts = pc.utf8_trim_whitespace(texts.cast(pa.large_string()))
    except pa.ArrowInvalid as error:  # bytes
        raise spot.error(f"holds bytes that are no UTF-8 ({error})", CURE) from error
    ms, bad = _of_iso(texts) if unit == "yyyy-mm-dd" else _of_parts(texts, unit)
    if bad.any():
        raise spot.error_at(bad, _no_date(shown(texts[int(bad.argmax())].as_py()), unit), CURE)
    return pa.array(ms)


def date_digits(numbers: pa.Array) -> DateDigits | None:
    """The date format of whole numbers, if all are dates of 1990 to 2099; None otherwise."""
    numbers = plain(numbers).drop_null()
    for unit in sorted(DATE_DIGITS, key=lambda one: (-one.count("y"), one)):
        try:
            times = digits_to_ms(integers(numbers, NOWHERE), unit, NOWHERE)
        except DataError:
            continue
        if _of_our_time(times):
            return unit
    return None


def text_dates(texts: pa.Array) -> tuple[TextDates, ...]:
    """The date formats that fit all texts, if all are then dates of 1990 to 2099.

    Formats with four-digit years come first; those with two-digit years follow, the one with the
    smallest span of dates first.
    """
    found: dict[TextDates, int] = {}
    for unit in TEXT_DATES:
        if _dates(texts.slice(0, 100), unit) is None or (times := _dates(texts, unit)) is None:
            continue
        ends = pc.min_max(times).as_py()
        found[unit] = 0 if "yyyy" in unit else ends["max"] - ends["min"]
    return tuple(sorted(found, key=found.__getitem__))


def _dates(texts: pa.Array, unit: str) -> pa.Array | None:
    """The times, if all are of 1990 to 2099; None otherwise."""
    try:
        times = texts_to_ms(texts, unit, NOWHERE)
    except DataError:
        return None
    if "yyyy" not in unit:
        spelled = pc.match_substring_regex(texts.cast(pa.large_string()), VERSION)
        if pc.any(spelled).as_py():
            return None
    return times if _of_our_time(times) else None


def _of_our_time(times: pa.Array) -> bool:
    years = pc.year(times.cast(pa.timestamp("ms")))
    ours = pc.all(pc.and_(pc.greater_equal(years, 1990), pc.less(years, 2100)))
    return len(times) > 0 and bool(ours.as_py())


def _no_date(value: object, unit: str) -> str:
    return f"holds {value}, which is no date of `timestamp_unit: {unit}`,"


def _of_iso(texts: pa.Array) -> tuple[I64, Mask]:
    """[N] ms of ISO 8601 times, with or without a zone; and which texts are none."""
    if pc.any(pc.match_substring_regex(texts, ODD_ISO)).as_py():
        for pattern, iso in NEARLY_ISO:
            texts = pc.replace_substring_regex(texts, pattern, iso)
    ms, bad = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    zoned = pc.match_substring_regex(texts, ZONED).to_numpy(zero_copy_only=False)
    for at, zone in ((np.flatnonzero(zoned), "UTC"), (np.flatnonzero(~zoned), None)):
        part = texts.take(pa.array(at))
        found = _ms_of_iso(part, zone)
        if found is not None:
            ms[at] = found
            continue
        for number, row in enumerate(at):
            one = _ms_of_iso(part.slice(number, 1), zone)
            bad[row] = one is None
            ms[row] = 0 if one is None else one[0]
    return ms, bad


def _ms_of_iso(texts: pa.Array, zone: str | None) -> I64 | None:
    """[N] ms of ISO 8601 times; None where one is not a time.

    None, too, where one needs nanoseconds and another has more of them since 1970 than an int64.
    """
    for unit, of_ms in (("us", 1_000), ("ns", 1_000_000)):
        try:
            times = texts.cast(pa.timestamp(unit, zone))
        except pa.ArrowInvalid:
            continue
        # numpy rounds down, which is right for times before 1970.
        ms: I64 = times.cast(pa.int64()).to_numpy() // of_ms
        return ms
    return None


def _of_parts(texts: pa.Array, unit: str) -> tuple[I64, Mask]:
    """[N] ms of dates of day, month and year, in the unit's order; and which texts are none."""
    date = "[./-]".join(PARTS.get(part, "") for part in unit.split("/"))
    orders = NAMED_MONTHS if "mmm" in unit else (f"^{date}{TIME_OF_DAY}",)
    each = [pc.extract_regex(texts, order) for order in orders]
    found = min(each, key=lambda one: int(one.null_count))
    bad: Mask = found.is_null().to_numpy(zero_copy_only=False)
    zero = pa.scalar("0", pa.large_string())

    def part(name: str) -> pa.Array:
        """What was found; 0 where nothing was."""
        text = pc.fill_null(pc.struct_field(found, name), zero)
        return pc.if_else(pc.equal(text, ""), zero, text)

    def number(name: str) -> I64:
        numbers: I64 = part(name).cast(pa.int64()).to_numpy()
        return numbers

    year = number("year")
    if "yyyy" not in unit:  # the rule of POSIX
        year = year + np.where(year < 69, 2000, 1900)
    half, hour = pc.utf8_lower(part("half")), number("hour")
    halved = ~pc.equal(half, "0").to_numpy(zero_copy_only=False)
    bad |= halved & ((hour < 1) | (hour > 12))
    after_noon = pc.equal(half, "p").to_numpy(zero_copy_only=False)
    hour = np.where(halved, hour % 12 + 12 * after_noon, hour)
    month = _months(part("month")) if "mmm" in unit else number("month")
    ms, bad = _since_1970(
        year, month, number("day"), hour, number("minute"), number("seconds"), bad=bad
    )
    if "mmm" in unit:
        ms = ms - _zones_ms(part("zone"))
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(part("fraction"), 3, "0"), 0, 3)
    return ms + fraction.cast(pa.int64()).to_numpy(), bad


def _months(names: pa.Array) -> I64:
    """1 to 12; 0 for what is not a month's name."""
    first = pc.utf8_lower(pc.utf8_slice_codeunits(names, 0, 3))
    places = pc.index_in(first, value_set=pa.array(MONTHS, names.type))
    months: I64 = pc.fill_null(places, -1).to_numpy().astype(np.int64) + 1
    return months


def _zones_ms(zones: pa.Array) -> I64:
    """How many ms zones such as +0530 are ahead of UTC; 0 where there is none."""
    digits = pc.replace_substring_regex(zones, "[:+]", "").cast(pa.int64()).to_numpy()
    hours, minutes = np.divmod(np.abs(digits), 100)
    ahead: I64 = np.sign(digits) * (60 * hours + minutes) * 60_000
    return ahead


def _since_1970(
    year: I64, month: I64, day: I64, hour: I64, minute: I64, second: I64, *, bad: Mask
) -> tuple[I64, Mask]:
    """[N] ms since 1970; and which are `bad`, not a date, or not a time of day."""
    bad = bad | (month < 1) | (month > 12)
    months = np.where(bad, 0, 12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    bad |= (days.astype("datetime64[M]") != months) | (hour > 23) | (minute > 59) | (second > 59)
    return days.astype(np.int64) * DAY_MS + 1_000 * (3600 * hour + 60 * minute + second), bad
