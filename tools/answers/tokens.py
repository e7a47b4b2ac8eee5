r"""The tokens of an answer: LaTeX, plain text or a mixture of both, without what only changes its look.

>>> [token.text for token in read_tokens(r"$\mathbf{31{,}520}\,\text{cm}^2$")]
['31520', 'cm', '^', '2']
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["number", "repeating", "letter", "word", "command", "symbol"]


class AnswerToken(NamedTuple):
    """A token of an answer.

    Attributes:
        kind: `number` is a decimal without separators of thousands, perhaps with an exponent. `repeating` is a decimal
            that repeats, as `whole.fixed(repeated)`. `letter` is a letter of a formula. `word` is one of a text, or the
            name of a unit. `command` is a command of LaTeX without its backslash. `symbol` is any other character.
        text: the token, as its kind says.
        spaced: whether white space stands before it.
        upright: whether it stands in a text of LaTeX, such as `\\text{...}`.
    """

    kind: Kind
    text: str
    spaced: bool = False
    upright: bool = False

    def is_symbol(self, *texts: str) -> bool:
        return self.kind == "symbol" and self.text in texts

    def is_command(self, *names: str) -> bool:
        return self.kind == "command" and self.text in names

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text that has blanks between them."""
    return frozenset(words.split())


FUNCTIONS = word_set(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc exp ln log lg sqrt"
)
"""Names that are functions also without a backslash."""

_SHORT_WORDS = word_set(
    "an and any are isn don won as at be but by can did do far few for has had hot if in is it its lot may new nor "
    "not no now odd of off old on one or our out own per red she so sum ten that the to top two up was way we why yes "
    "yet you all six low cm mm km dm nm ft yd mi kg mg lb lbs oz ml cl kl hr hrs min sec ms mph kph cal kj kw "
    "dne mod pm am gal deg rad men day sq cu cup age bus cat dog egg hat inf pen pie pet cow hen boy pts usd"
)
"""Words and units of two or three letters; other texts as short are products of letters."""

_HALF_WIDTH = {0xFF00 + at: 0x20 + at for at in range(1, 0x5F)} | {0x2212: ord("-"), 0x3000: ord(" ")}

_COMMANDS_OF_SIGNS = {
    "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "√": r"\sqrt ", "∛": r"\sqrt[3] ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "°": r"^\circ ", "º": r"^\circ ", "ℝ": r"\mathbb{R}", "→": r"\to ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "〈": r"\langle ", "〉": r"\rangle ", "¬": r"\neg ", "∠": r"\angle ", "△": r"\triangle ", "…": r"\ldots ", "–": "-",
    "‐": "-", "‑": "-", "—": "-", "−": "-", "∕": "/", "⁄": "/", "′": "'", "’": "'", "、": ",", "。": ".",
    "¢": r"\text{cents}",
    "€": r"\euro ", "£": r"\pounds ", "¥": r"\yen ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ",
    "λ": r"\lambda ", "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ",
    "∖": r"\setminus ", "≡": r"\equiv ", "∼": r"\sim ", "∧": r"\land ", "∨": r"\lor ", "∀": r"\forall ",
    "∃": r"\exists ", "\u2009": r"\,", "\u202f": r"\,", "\u00a0": r"\,", "\u2061": "", "\u200b": "", "\ufeff": "",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SCRIPTS = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+|[₀-₉]+")
_PRIMES = re.compile(r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![A-Za-z]))")
_BETWEEN_CIRCLED = re.compile(r"(?<=[①-⑳])(?:[\s,，、]|和|与)+(?=[①-⑳])")
_SIGNS = str.maketrans(_COMMANDS_OF_SIGNS)

_LOOKS = word_set(
    "displaystyle textstyle scriptstyle left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr "
    "large Large LARGE huge Huge small normalsize limits nolimits bf it rm boldmath mathstrut strut thinspace "
    "medspace thickspace negthinspace quad qquad enspace nobreakspace space nonumber notag hfill centering"
)
_LOOK_GROUPS = word_set(
    "mathbf boldsymbol bm pmb mathit mathsf mathtt mathcal mathbb mathfrak boxed fbox underline underbrace "
    "overbrace phantom mathop mathord ensuremath displaylines bold emph colorbox"
)
_TEXTS = word_set(
    "text textbf textit textrm textsf texttt textnormal textup textsc textmd mbox hbox mathrm operatorname "
    "unit rm si textcolor color"
)
_TWO_GROUPS = frozenset({"textcolor", "colorbox"})

_SPACE = r"(?:\s|~|\\[ ,;:!>/]|\\(?:quad|qquad|thinspace|enspace)(?![A-Za-z]))"
_THIN = r"(?:\\[,!]|\{,\}|,\\[!,]|\\;|\\:|\\[ ]|~)"
_THOUSANDS = rf"\d{{1,3}}(?:(?:{_THIN}){{1,2}}\d{{3}})+(?!\d)"
_COMMAS = r"\d{1,3}(?:,\d{3})+(?![\d])(?!,\d)|\d{1,2}(?:,\d{2})+,\d{3}(?![\d])(?!,\d)"
_QUOTES = r"\d{1,3}(?:'\d{3})+(?![\d'])"
_POINTS = r"\d{1,3}(?:\.\d{3})+,\d{1,2}(?![\d,])|\d{1,3}(?:\.\d{3}){2,}(?![\d.])"
"""Thousands as in Switzerland, and as in Germany if it cannot be a decimal with a point."""

_BLANKS = r"[1-9]\d{0,2}(?:[ ]\d{3})+(?![\d])"
_EXPONENT = r"(?:[eE][-+]?\d+(?![\w.]))?"
_TOKEN = re.compile(
    rf"""(?P<space>{_SPACE}+)
    |(?P<repeating>\d*\.\d*\\(?:overline|bar|dot)\s*\{{?\d+\}}?(?:\d*\\dot\s*\{{?\d\}}?)?)
    |(?P<points>{_POINTS})
    |(?P<number>(?:{_THOUSANDS}|{_COMMAS}|{_BLANKS}|{_QUOTES}|\d+\{{,\}}\d+|\d+)(?:\.\d+)?{_EXPONENT}|\.\d+{_EXPONENT})
    |\\(?P<command>[A-Za-z]+|.)
    |(?P<letters>[A-Za-z]+)
    |(?P<foreign>[^\W\d_]+)
    |(?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NUMBER = re.compile(rf"\d+(?:\.\d+)?{_EXPONENT}")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")


def half_width(text: str) -> str:
    """Return a text with full-width letters, digits and signs as in ASCII, and the minus of mathematics as `-`."""
    return text.translate(_HALF_WIDTH)


def plain_signs(text: str) -> str:
    r"""Return a text with the signs of Unicode as LaTeX: `√` as `\sqrt`, `²` as `^{2}`, a narrow space as `\,`."""
    text = (
        _SCRIPTS.sub(_plain_script, half_width(text).translate(_SIGNS)).replace("{:}", ":").replace("...", r"\ldots ")
    )
    return _BETWEEN_CIRCLED.sub("", _PRIMES.sub(lambda primes: "'" * primes[0].count("prime"), text))


def _plain_script(script: re.Match[str]) -> str:
    if "₀" <= script[0][0] <= "₉":
        return f"_{{{script[0].translate(_SUBSCRIPTS)}}}"
    return f"^{{{script[0].translate(_SUPERSCRIPTS)}}}"


def read_tokens(text: str, *, groups: bool = True) -> list[AnswerToken]:
    """Return the tokens of an answer, in LaTeX or plain text; `groups` says whether `1,200` is one number. In brackets
    it never is."""
    return list(_Reader(plain_signs(text), groups).tokens())


class _Reader:
    def __init__(self, text: str, groups: bool) -> None:
        self._text, self._groups = text, groups
        self._at = 0
        self._spaced = False
        self._brackets = 0
        self._closings: list[str] = []  # for each open brace: "upright", "drop" or "keep", which is a token
        self._upright = 0  # open braces that are "upright"

    def tokens(self) -> Iterator[AnswerToken]:
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            assert match is not None  # the last alternative matches any character
            kind, start, self._at = match.lastgroup, self._at, match.end()
            if kind == "space":
                self._spaced = True
                continue
            if (
                kind == "number"
                and "," in match[0]
                and not match[0].count("{")
                and (self._brackets or not self._groups)
            ):
                match = _PLAIN_NUMBER.match(self._text, start)
                assert match is not None  # a number begins with digits
                self._at = match.end()
            if kind == "points" and (self._brackets or not self._groups):
                kind, match = "number", _PLAIN_NUMBER.match(self._text, start)
                assert match is not None  # as above
                self._at = match.end()
            for token in self._tokens(kind or "", match[0]):
                yield token
                self._spaced = False

    def _tokens(self, kind: str, text: str) -> list[AnswerToken]:
        if kind == "repeating":
            return [self._new("repeating", _repeating(text))]
        if kind == "number":
            return [self._new("number", _number(text))]
        if kind == "points":
            return [self._new("number", text.replace(".", "").replace(",", "."))]
        if kind == "command":
            return self._command(text[1:])
        if kind == "letters":
            return self._letters(text)
        if kind == "foreign":
            return [self._new("word", text)]
        return self._symbol(text)

    def _new(self, kind: Kind, text: str) -> AnswerToken:
        return AnswerToken(kind, text, self._spaced, self._upright > 0)

    def _command(self, name: str) -> list[AnswerToken]:
        if name in _LOOKS or name in "()[]#&":
            self._spaced = self._spaced or name in ("quad", "qquad")
            return []
        if name in _TWO_GROUPS or name == "color":
            self._skip_group()
            name = "mathbf"
        if name in _LOOK_GROUPS or name in _TEXTS:
            if self._next_is("{"):
                upright = name in _TEXTS and not (
                    name in ("mathrm", "operatorname") and self._peek_group() in ("e", "i")
                )
                if name == "mathbb":
                    return self._blackboard()
                self._closings.append("upright" if upright else "drop")
                self._upright += upright
            return []
        if name == "colon":
            return [self._new("symbol", ":")]
        if name in "{}":
            self._brackets += 1 if name == "{" else -1
        return [self._new("command", _SAME_COMMANDS.get(name, name))]

    def _blackboard(self) -> list[AnswerToken]:
        """Read the rest of `\\mathbb{R}`, whose brace has been read."""
        letter = self._peek_group()
        end = self._text.find("}", self._at)
        self._at = len(self._text) if end < 0 else end + 1
        return [self._new("command", f"set{letter}")]

    def _letters(self, text: str) -> list[AnswerToken]:
        if text in FUNCTIONS:
            return [self._new("command", text)]
        is_word = len(text) > 3 or (len(text) > 1 and text.lower() in _SHORT_WORDS)
        if self._upright or is_word:
            return [self._new("word", text)]
        parts = []
        for letter in text:
            parts.append(self._new("letter", letter))
            self._spaced = False
        return parts

    def _symbol(self, text: str) -> list[AnswerToken]:
        if text in "$`\\":
            return []
        if text == "*" and (
            self._text[self._at : self._at + 1] == "*" or self._text[self._at - 2 : self._at - 1] == "*"
        ):
            return []  # bold in Markdown
        if text == "-" and self._upright and self._text[self._at - 2 : self._at - 1] == "-":
            return []  # a dash of LaTeX
        if text == "{":
            self._closings.append("keep")
        elif text == "}" and self._closings:
            closed = self._closings.pop()
            self._upright -= closed == "upright"
            if closed != "keep":
                return []
        elif text in "([":
            self._brackets += 1
        elif text in ")]":
            self._brackets = max(0, self._brackets - 1)
        return [self._new("symbol", text)]

    def _next_is(self, sign: str) -> bool:
        """Step over a sign, and white space before it, if it comes next."""
        at = self._at
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        if self._text[at : at + 1] != sign:
            return False
        self._at = at + 1
        return True

    def _peek_group(self) -> str:
        end = self._text.find("}", self._at, self._at + 40)
        return self._text[self._at : end].strip(" {") if end >= 0 else ""

    def _skip_group(self) -> None:
        if self._text[self._at : self._at + 1] == "{" or self._next_is("{"):
            end = self._text.find("}", self._at)
            self._at = len(self._text) if end < 0 else end + 1


_SAME_COMMANDS = {
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "dfrac": "frac", "tfrac": "frac",
    "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "choose": "choose", "varnothing": "emptyset",
    "ast": "cdot", "simeq": "approx", "thickapprox": "approx", "approxeq": "approx", "vee": "lor", "wedge": "land",
    "lbrace": "{", "rbrace": "}", "lvert": "|", "rvert": "|", "vert": "|", "lbrack": "lbrack", "varphi": "phi",
    "varepsilon": "epsilon", "bigcup": "cup", "degree": "circ", "dollar": "$", "textdollar": "$", "rightarrow": "to",
    "dots": "ldots", "cdots": "ldots", "lt": "<", "gt": ">", "arcctg": "arccot", "tg": "tan", "ctg": "cot",
    "imath": "i", "backslash": "setminus", "smallsetminus": "setminus",
}  # fmt: skip


def _number(text: str) -> str:
    decimal_comma = re.fullmatch(r"(\d+)\{,\}(\d+)", text)
    if decimal_comma and len(decimal_comma[2]) != 3:
        return f"{decimal_comma[1]}.{decimal_comma[2]}"
    return re.sub(r"[^\d.eE+-]", "", text)


def _repeating(text: str) -> str:
    match = _REPEATING.fullmatch(text)
    assert match is not None  # the pattern of the token is the same
    whole, fixed, first, middle, last = match.groups()
    return f"{whole or 0}.{fixed}({first}{middle or ''}{last or ''})"
