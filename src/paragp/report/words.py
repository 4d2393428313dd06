"""Numbers and names as a reader sees them: rounded, short, and harmless whatever the data holds."""

import math
import unicodedata
from typing import Any

FULL = 200  # characters of a name that are kept at all
LABEL = 18  # beside a bar


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, and all digits before the point up to ten million.

    >>> [number(value) for value in (1234567.0, 0.123456, 5e-13, 0.0, math.nan)]
    ['1,234,567', '0.1235', '5e-13', '0', '–']
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{_trimmed(mantissa)}e{int(power)}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return _trimmed(f"{value:,.{decimals}f}")


def percent(share: float) -> str:
    """A share in per cent, with a space that does not break.

    >>> percent(0.9155)
    '91.5\\xa0%'
    """
    return f"{_trimmed(f'{100 * share:.1f}')}\u00a0%" if math.isfinite(share) else "–"


def count(rows: int, noun: str = "row") -> str:
    """How many of them there are.

    >>> count(1), count(2000)
    ('1 row', '2,000 rows')
    """
    return f"{rows:,} {noun}{'' if rows == 1 else 's'}"


def shown(text: Any, most: int = FULL) -> str:
    """A name as printable signs on one line, its middle left out where it is too long.

    >>> shown("two\\nlines"), shown("a very long name of a column", 14)
    ('two lines', 'a very lo…lumn')
    """
    clean = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split()) or "(blank)"
    if any(unicodedata.east_asian_width(sign) in "WF" for sign in clean[: 2 * most]):
        most = most // 2
    if len(clean) <= most:
        return clean
    tail = most // 3
    return f"{clean[: most - tail - 1]}…{clean[-tail:]}"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
