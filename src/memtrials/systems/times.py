"""Times as benchmarks write them, as services want them: ISO 8601 in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_SLASHES = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?: \([^)]*\))? (\d{1,2}):(\d{2})")
_SPOKEN = re.compile(r"(\d{1,2}):(\d{2}) ([ap])m on (\d{1,2}) ([a-z]+),? (\d{4})", re.IGNORECASE)


def iso_time(text: str) -> str:
    """`YYYY-MM-DDTHH:MM:SSZ` of `2023/05/30 (Tue) 23:40`, `1:56 pm on 8 May, 2023` or ISO 8601.

    A time without a zone is taken for UTC; the name of a weekday isn't checked; fractions of seconds are dropped. Names
    of months are English whatever the locale. Raises ValueError with the text for anything else.
    """
    return _parsed(text.strip()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parsed(text: str) -> datetime:
    try:
        if found := _SLASHES.fullmatch(text):
            year, month, day, hour, minute = map(int, found.groups())
            return datetime(year, month, day, hour, minute, tzinfo=UTC)
        if found := _SPOKEN.fullmatch(text):
            clock, minutes, half, date, name, of_year = found.groups()
            if not 1 <= int(clock) <= 12:
                raise ValueError
            of_day = int(clock) % 12 + (12 if half.lower() == "p" else 0)
            return datetime(int(of_year), _month(name.lower()), int(date), of_day, int(minutes), tzinfo=UTC)
        if "T" in text:
            time = datetime.fromisoformat(text)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no time in a known form")


def _month(name: str) -> int:
    """The number of a month by its name or the first three letters of it; 0, which no date has, for another word."""
    return next((n for n, month in enumerate(MONTHS, 1) if name in (month, month[:3])), 0)
