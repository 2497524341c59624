"""Figures as text, in one way everywhere: numbers, times, bytes, shares, figures by rank, lists and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, but every digit before the point.

    >>> number(3.14159), number(22.0), number(271647)
    ('3.142', '22', '271647')
    """
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """A number with its unit, or alone where the unit is "".

    >>> quantity(0.4512, "s", 3), quantity(22.0, "")
    ('0.451 s', '22')
    """
    return f"{number(value, digits)} {unit.replace('us', 'µs')}".rstrip()


def time_text(time: float, unit: str = "", digits: int = 4) -> str:
    """A time in its unit. Seconds below 10 are said in milliseconds, to a hundredth of one at most.

    >>> time_text(22.0), time_text(0.4512, "s"), time_text(0.0204567, "s", digits=6), time_text(2e-4, "s")
    ('22', '451.2 ms', '20.46 ms', '0.2 ms')
    """
    if unit != "s" or abs(time) >= 10:
        return quantity(time, unit, digits)
    ms = 1e3 * time
    return quantity(round(ms, 2), "ms", digits) if abs(ms) >= 1 else quantity(ms, "ms", 2)


def byte_unit(largest: float) -> tuple[float, str]:
    """(bytes, name) of the decimal unit in which quantities up to `largest` bytes are said.

    >>> byte_unit(19_480_000)
    (1000000.0, 'MB')
    """
    return next(((f, unit) for f, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= f), (1.0, "bytes"))


def bytes_text(count: float) -> str:
    """Bytes in the decimal unit that suits them.

    >>> bytes_text(19_480_000), bytes_text(512)
    ('19.48 MB', '512 bytes')
    """
    factor, unit = byte_unit(count)
    return quantity(count / factor, unit)


def percent(share: float, sign: str = "") -> str:
    """A share of 1. sign: "+" writes it for what is added, too.

    >>> percent(3 / 11), percent(0.25, "+")
    ('27.3 %', '+25.0 %')
    """
    return f"{100 * share:{sign}.1f} %"


def by_rank(values: Sequence[float], digits: int = 3) -> str:
    """One figure a rank, or what they have in common where that is too long for a line.

    >>> by_rank([4, 3, 2, 1]), by_rank([5.5] * 9), by_rank(range(17))
    ('4 3 2 1', '5.5 on every rank', 'at most 16')
    """
    texts = [number(value, digits) for value in values]
    if len(texts) > 8 and len(set(texts)) == 1:
        return f"{texts[0]} on every rank"
    return " ".join(texts) if len(texts) <= 16 else f"at most {number(max(values), digits)}"


def counted(count: int, what: str) -> str:
    """So many of something, in the plural where it needs one.

    >>> counted(1, "rank"), counted(8, "microbatch")
    ('1 rank', '8 microbatches')
    """
    return f"{count} {what}{'' if count == 1 else 'es' if what.endswith(('ch', 's')) else 's'}"


def joined(words: Iterable[object], last: str = "and") -> str:
    """A list as a sentence says it.

    >>> joined([1, 2, 3]), joined(["F", "B"], "or"), joined(["W"])
    ('1, 2 and 3', 'F or B', 'W')
    """
    *others, end = map(str, words)
    return f"{', '.join(others)} {last} {end}" if others else end


def table(rows: Iterable[Sequence[str]], align: str = "<>", gap: str = "  ") -> list[str]:
    """Lines of text, each column as wide as its longest cell. align: '<' or '>' a column; the last one serves the rest.

    >>> print(*table([("rank", "busy", "idle"), ("0", "16", "6.5")]), sep="\\n")
    rank  busy  idle
    0       16   6.5
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligns = align + align[-1] * len(widths)
    return [
        gap.join(f"{cell:{to}{width}}" for cell, to, width in zip(row, aligns, widths, strict=False)).rstrip()
        for row in rows
    ]
