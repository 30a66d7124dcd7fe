# ruff: noqa: RUF001  (phonemes and typographic signs)
"""Written English to words that can be looked up: numbers, amounts, times and signs are spelled out."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

import inflect

_ABBREVIATIONS = {
    "mr.": "mister",
    "mrs.": "missus",
    "ms.": "miz",
    "dr.": "doctor",
    "prof.": "professor",
    "st.": "saint",
    "jr.": "junior",
    "sr.": "senior",
    "vs.": "versus",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
}
_SIGNS = {
    "&": "and",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "%": "percent",
    "#": "number",
    "°": "degrees",
    "/": "slash",
}
_CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent"), "¥": ("yen", "sen")}
_PLAIN = str.maketrans({"’": "'", "‘": "'", "–": "—", "«": '"', "»": '"', "¿": "", "¡": "", "\u00a0": " "})

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_RULES = re.compile(
    rf"""
    (?P<abbreviation>\b(?:{"|".join(map(re.escape, _ABBREVIATIONS))})(?!\w) | \bno\.(?=\s*\d))
    | (?P<currency>[$£€¥])\s?(?P<amount>{_NUMBER})(?P<scale>\s(?:thousand|million|billion|trillion)\b)?
    | (?P<hours>\b\d{{1,2}}):(?P<minutes>\d{{2}})\b
    | (?P<ordinal>\b\d+)(?:st|nd|rd|th)\b
    | (?P<decade>\b1\d\d0|\b20\d0)s\b
    | (?P<minus>(?<![\w.)])[-−](?=\d))
    | (?P<range>(?<=\d)\s?[-—](?=\d))
    | (?P<number>{_NUMBER})
    | (?P<sign>[&+=@%#°/])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LONGEST_NUMBER = 9
"""Digits; what has more, or begins with 0, is read digit by digit."""


def spell_out(text: str) -> str:
    """`text` in letters and punctuation alone. Accents are taken off letters."""
    text = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    text = "".join(character for character in text if not unicodedata.combining(character))
    spelled = _RULES.sub(_replace, text)
    return re.sub(r"\s+", " ", re.sub(r"\s+(?=[.,!?;:)])", "", spelled)).strip()


def _replace(match: re.Match[str]) -> str:
    group = match.groupdict()
    if (word := group["abbreviation"]) is not None:
        return _ABBREVIATIONS.get(word.lower(), "number")
    if group["currency"] is not None:
        return _money(group["currency"], group["amount"].replace(",", ""), group["scale"])
    if group["hours"] is not None:
        return _time(int(group["hours"]), int(group["minutes"]))
    if group["ordinal"] is not None:
        return _words(_engine().ordinal(group["ordinal"]))
    if group["decade"] is not None:
        return _engine().plural(_year(int(group["decade"])))
    if group["minus"] is not None:
        return " minus "
    if group["range"] is not None:
        return ", "
    if (number := group["number"]) is not None:
        return f" {_number(number)} " if _touches_letter(match) else _number(number)
    return f" {_SIGNS[group['sign']]} "


def _touches_letter(match: re.Match[str]) -> bool:
    around = match.string[max(0, match.start() - 1) : match.start()] + match.string[match.end() : match.end() + 1]
    return any(character.isalpha() for character in around)


def _number(text: str) -> str:
    digits = text.replace(",", "")
    whole = digits.partition(".")[0]
    if len(whole) > _LONGEST_NUMBER or (len(whole) > 1 and whole.startswith("0")):
        return " ".join(_words(digit) if digit.isdigit() else "point" for digit in digits)
    if text.isdigit() and 1100 <= int(text) <= 2099:
        return _year(int(text))
    return _words(digits)


def _year(year: int) -> str:
    century, rest = divmod(year, 100)
    if year in range(2000, 2010) or (rest == 0 and century % 10 == 0):
        return _words(str(year))
    if rest == 0:
        return f"{_words(str(century))} hundred"
    return f"{_words(str(century))} {'oh ' if rest < 10 else ''}{_words(str(rest))}"


def _time(hours: int, minutes: int) -> str:
    if minutes == 0:
        return f"{_words(str(hours))} o'clock"
    return f"{_words(str(hours))} {'oh ' if minutes < 10 else ''}{_words(str(minutes))}"


def _money(currency: str, amount: str, scale: str | None) -> str:
    unit, part = _CURRENCIES[currency]
    if scale is not None:
        return f"{_words(amount)}{scale} {_engine().plural(unit)}"
    whole, _, fraction = amount.partition(".")
    spoken = f"{_words(whole)} {_engine().plural(unit, int(whole))}"
    cents = int(fraction[:2].ljust(2, "0")) if fraction else 0
    return f"{spoken} and {_words(str(cents))} {_engine().plural(part, cents)}" if cents else spoken


def _words(number: str) -> str:
    spoken = _engine().number_to_words(number, andword="", comma="")
    return re.sub(r"[-\s]+", " ", str(spoken))


@cache
def _engine() -> inflect.engine:
    return inflect.engine()
