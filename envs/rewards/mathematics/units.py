"""Units of measurement: what they measure, and how many of the base unit they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from toolgym.tools.answers.tokens import AnswerToken


class Unit(NamedTuple):
    """A unit as a number of base units. `dimension` has each base quantity with its power, sorted."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction

    def times(self, other: Unit, power: int = 1) -> Unit:
        powers = dict(self.dimension)
        for quantity, exponent in other.dimension:
            powers[quantity] = powers.get(quantity, 0) + power * exponent
        dimension = tuple(sorted((quantity, exponent) for quantity, exponent in powers.items() if exponent))
        return Unit(dimension, self.factor * other.factor**power)


NO_UNIT = Unit((), Fraction(1))

_TABLE: Mapping[str, Mapping[str, str]] = {
    "length": {
        "mm millimeter millimeters millimetre millimetres 毫米": "1/1000",
        "cm centimeter centimeters centimetre centimetres 厘米": "1/100",
        "dm decimeter decimeters 分米": "1/10",
        "m meter meters metre metres 米": "1",
        "km kilometer kilometers kilometre kilometres 千米 公里": "1000",
        "inch inches in": "0.0254",
        "foot feet ft": "0.3048",
        "yard yards yd": "0.9144",
        "mile miles mi": "1609.344",
        "nm nanometer nanometers": "1e-9",
    },
    "mass": {
        "mg milligram milligrams 毫克": "1/1000",
        "g gram grams 克": "1",
        "kg kilogram kilograms 千克 公斤": "1000",
        "lb lbs pound pounds": "453.59237",
        "oz ounce ounces": "28.349523125",
        "tonne tonnes 吨": "1000000",
    },
    "time": {
        "ms millisecond milliseconds 毫秒": "1/1000",
        "s sec secs second seconds 秒": "1",
        "min minute minutes mins 分钟": "60",
        "h hr hrs hour hours 小时": "3600",
        "day days 天": "86400",
        "week weeks 周": "604800",
    },
    "months": {"month months 个月": "1", "year years yr yrs 年": "12"},
    "litre": {
        "ml milliliter milliliters millilitre millilitres mL 毫升": "1/1000",
        "l L liter liters litre litres 升": "1",
    },
    "gallon": {"gallon gallons gal": "1", "quart quarts": "1/4", "pint pints": "1/8", "cup cups": "1/16"},
    "angle": {"degree degrees deg 度": "1"},
    "radians": {"radian radians rad 弧度": "1"},  # a degree is no rational number of them
    "temperature": {"celsius": "1"},
    "warmth": {"fahrenheit": "1"},  # with another zero
    "dollar": {"dollar dollars usd": "1", "cent cents": "1/100"},
    "euro": {"euro euros": "1"},
    "pounds": {"quid": "1"},
    "yuan": {"元 yuan yen": "1", "角": "1/10"},
    "force": {"N newton newtons": "1"},
    "energy": {"J joule joules": "1", "kj kilojoule kilojoules kJ": "1000", "cal calorie calories": "4.184"},
    "power": {"W watt watts": "1", "kw kilowatt kilowatts kW": "1000"},
    "voltage": {"V volt volts": "1"},
}

UNITS: dict[str, Unit] = {
    name: Unit(((quantity, 1),), Fraction(factor))
    for quantity, names in _TABLE.items()
    for several, factor in names.items()
    for name in several.split()
}
UNITS["mph"] = UNITS["mile"].times(UNITS["hour"], -1)
UNITS["kph"] = UNITS["km"].times(UNITS["hour"], -1)

_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_AFTER = {"squared": 2, "cubed": 3}
_LETTER_UNITS = frozenset("mgsLlhNJWV")


def read_unit(tokens: Sequence[AnswerToken]) -> Unit | None:
    r"""Return the unit that all of these tokens are, such as `cm^2`, `square feet` and `km/h`; None if they are not."""
    unit, sign, at, power = NO_UNIT, 1, 0, 1
    is_read = False
    while at < len(tokens):
        token = tokens[at]
        name = token.text if token.text in UNITS else token.text.lower()
        if token.kind == "word" and name not in UNITS and name[:2] in ("平方", "立方") and name[2:] in UNITS:
            power, name = _POWERS[name[:2]], name[2:]
        if token.kind == "word" and token.text.lower() in _POWERS:
            power = _POWERS[token.text.lower()]
        elif (token.kind == "word" and name in UNITS) or (token.kind == "letter" and token.text in _LETTER_UNITS):
            after, at = _power_after(tokens, at + 1)
            unit = unit.times(UNITS[name], sign * power * after)
            is_read, sign, power = True, 1, 1
            continue
        elif is_read and (token.is_symbol("/") or token.is_word("per")):
            sign = -1
        elif not token.is_command("cdot"):
            return None
        at += 1
    return unit if is_read else None


def _power_after(tokens: Sequence[AnswerToken], at: int) -> tuple[int, int]:
    if at < len(tokens) and tokens[at].is_word(*_AFTER):
        return _AFTER[tokens[at].text.lower()], at + 1
    if not (at + 1 < len(tokens) and tokens[at].is_symbol("^")):
        return 1, at
    digits = [token for token in tokens[at + 1 : at + 5] if not token.is_symbol("{", "}", "-")]
    if not digits or digits[0].text not in ("1", "2", "3"):
        return 1, at
    power, end = int(digits[0].text), at + 1
    if tokens[end].is_symbol("{"):
        power = -power if tokens[end + 1].is_symbol("-") else power
        while end < len(tokens) and not tokens[end].is_symbol("}"):
            end += 1
    return power, end + 1
