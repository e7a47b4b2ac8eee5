r"""From the tokens of a formula to a SymPy expression, whose numbers are exact.

The grammar is that of written mathematics: `2\frac{1}{2}` is a mixed number, `2x` a product, `\sin 2x` takes the
product after it, `1/2x` divides by the product, and `\log` without a base is that of 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy

from toolgym.tools.answers.numbers import fraction_of, repeating_fraction
from toolgym.tools.answers.tokens import AnswerToken, word_set
from toolgym.tools.errors import ToolgymError

MAX_BITS = 4_000_000
"""Bits of a whole number that is written out. A power that would be longer stays a power."""

MAX_FACTORIAL = 5000
MAX_DEPTH = 60

DEGREE = sympy.Symbol("degree", positive=True)
PLUS_MINUS = sympy.Symbol("plus_minus")

GREEK = word_set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar"
)

_power, _factorial, _binomial = map(sympy.Function, ("power", "factorial", "binomial"))  # too long to be written out

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh, "coth": sympy.coth, "arcsin": sympy.asin,
    "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot, "arcsec": sympy.asec, "arccsc": sympy.acsc,
    "exp": sympy.exp, "ln": sympy.log, "lg": lambda x: sympy.log(x, 10), "log": lambda x: sympy.log(x, 10),
}  # fmt: skip
_TRIGONOMETRIC = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_INVERSES = {"sin": sympy.asin, "cos": sympy.acos, "tan": sympy.atan, "cot": sympy.acot, "sec": sympy.asec,
             "csc": sympy.acsc, "sinh": sympy.asinh, "cosh": sympy.acosh, "tanh": sympy.atanh}  # fmt: skip
_PRODUCTS = frozenset(("cdot", "times"))
_CLOSINGS = {"(": ")", "[": "]", "{": "}"}


class UnreadableError(ToolgymError):
    """The tokens are not a formula that the grammar knows."""


def read_formula(tokens: Sequence[AnswerToken]) -> Any:
    """Return the SymPy expression that all of the tokens are. Raises UnreadableError."""
    formula, end = read_formula_at(tokens)
    if end < len(tokens):
        raise UnreadableError(f"what is {tokens[end].text!r} after a formula?")
    return formula


def read_formula_at(tokens: Sequence[AnswerToken]) -> tuple[Any, int]:
    """Return the SymPy expression that the first tokens are, and where it ends. Raises UnreadableError."""
    reader = _Formula(tokens)
    return reader.sum(), reader.at


def rational(fraction: Fraction) -> Any:
    return sympy.Rational(fraction.numerator, fraction.denominator)


def number_of(token: AnswerToken) -> Any:
    fraction = repeating_fraction(token.text) if token.kind == "repeating" else fraction_of(token.text)
    if fraction is None:
        raise UnreadableError("a number is too long")
    return rational(fraction)


def power(base: Any, exponent: Any) -> Any:
    """Return a power, written out only if its digits fit into `MAX_BITS`."""
    if base.is_Rational and exponent.is_Rational:
        bits = max(abs(base.p).bit_length(), base.q.bit_length() if isinstance(base.q, int) else base.q)
        if bits > 1 and abs(exponent) * bits > MAX_BITS:
            return _power(base, exponent)
    elif not base.free_symbols and not exponent.free_symbols and base.has(_power) | exponent.has(_power):
        return _power(base, exponent)
    return sympy.Pow(base, exponent)


class _Formula:
    """A parser by recursive descent over tokens; `at` is the next one."""

    def __init__(self, tokens: Sequence[AnswerToken]) -> None:
        self._tokens = tokens
        self.at = 0
        self._depth = 0

    def _peek(self, ahead: int = 0) -> AnswerToken | None:
        at = self.at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _next_symbol(self, *texts: str) -> bool:
        token = self._peek()
        return token is not None and token.is_symbol(*texts)

    def _next_command(self, *names: str) -> bool:
        token = self._peek()
        return token is not None and token.is_command(*names)

    def _take_symbol(self, text: str) -> bool:
        if self._next_symbol(text):
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        token = self._peek()
        if token is None or not (token.is_symbol(text) or token.is_command(text)):
            raise UnreadableError(f"{text!r} is missing")
        self.at += 1

    # ------------------------------------------------------------------ sums, products, powers

    def sum(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("the formula is nested too deeply")
        total = self._signed_product()
        while self._next_symbol("+", "-") or self._next_command("pm", "mp"):
            total += self._signed_product()
        self._depth -= 1
        return total

    def _signed_product(self) -> Any:
        sign: Any = sympy.Integer(1)
        while True:
            if self._next_symbol("-"):
                sign = -sign
            elif self._next_command("pm", "mp"):
                sign *= PLUS_MINUS if self._next_command("pm") else -PLUS_MINUS
            elif not self._next_symbol("+"):
                break
            self.at += 1
        return sign * self._product()

    def _product(self) -> Any:
        product = self._implicit_product()
        while True:
            if self._next_symbol("/") or self._next_command("div"):
                self.at += 1
                divisor = self._signed_factor()
                if divisor == 0:
                    raise UnreadableError("a division by zero")
                product /= divisor
            elif self._next_symbol("*") or self._next_command(*_PRODUCTS):
                self.at += 1
                product *= self._signed_factor()
            else:
                return product

    def _signed_factor(self) -> Any:
        sign = 1
        while self._next_symbol("-", "+"):
            sign = -sign if self._next_symbol("-") else sign
            self.at += 1
        return sign * self._implicit_product()

    def _implicit_product(self, *, stops_at_functions: bool = False) -> Any:
        first = self._peek()
        product = self._power()
        mixed = self._mixed_part(first)
        if mixed is not None:
            product += mixed
        while (token := self._peek()) is not None and self._begins_factor(token):
            if stops_at_functions and token.kind == "command" and token.text in _FUNCTIONS:
                break
            product *= self._power()
        return product

    def _mixed_part(self, first: AnswerToken | None) -> Any:
        """Read the part below 1 of a mixed number, after its whole number."""
        whole = self._tokens[self.at - 1] if self.at else None
        if whole is None or whole is not first or whole.kind != "number" or not whole.text.isdigit():
            return None
        start, token = self.at, self._peek()
        if token is None:
            return None
        if token.is_command("frac"):
            part = self._power()
        elif token.kind == "number" and token.spaced and (slash := self._peek(1)) is not None and slash.is_symbol("/"):
            self.at += 2
            below = self._peek()
            if below is None or below.kind != "number":
                raise UnreadableError("a mixed number without its denominator")
            self.at += 1
            part = number_of(token) / number_of(below)
        else:
            return None
        if part.is_Rational and 0 < part < 1 and part.q != 1:
            return part
        self.at = start
        return None

    def _begins_factor(self, token: AnswerToken) -> bool:
        if token.kind == "letter":
            return not token.upright
        if token.kind == "command":
            return token.text in _ATOMS or token.text in _FUNCTIONS or token.text in GREEK
        if token.kind in ("number", "repeating"):
            before = self._tokens[self.at - 1] if self.at else None
            return before is not None and before.is_symbol(")", "}", "!") and not token.spaced
        return token.is_symbol("(", "{", "[")

    def _power(self) -> Any:
        base = self._postfix(self._atom())
        if self._next_symbol("^") and not self._at_degree():
            self.at += 1
            base = self._postfix(power(base, self._script()))
        return base

    def _at_degree(self) -> bool:
        following = self._peek(1)
        if following is None:
            return False
        inner = self._peek(2) if following.is_symbol("{") else following
        return inner is not None and inner.is_command("circ")

    def _postfix(self, value: Any) -> Any:
        while True:
            if self._take_symbol("!"):
                if self._next_symbol("!", "="):
                    raise UnreadableError("a double factorial")
                is_long = value.is_Number and not 0 <= value <= MAX_FACTORIAL
                value = _factorial(value) if is_long else sympy.factorial(value)
            elif self._next_symbol("^") and self._at_degree():
                self.at += 1
                self.at += 3 if self._next_symbol("{") else 1
                value *= DEGREE
            elif self._next_command("circ"):
                self.at += 1
                value *= DEGREE
            else:
                return value

    def _script(self) -> Any:
        """Read an exponent: a group, or one token with its sign."""
        if self._next_symbol("{"):
            return self._group()
        sign = 1
        while self._next_symbol("-", "+"):
            sign = -sign if self._next_symbol("-") else sign
            self.at += 1
        return sign * self._atom()

    # ------------------------------------------------------------------ atoms

    def _group(self) -> Any:
        opening = self._peek()
        if opening is None or not opening.is_symbol("(", "[", "{"):
            raise UnreadableError("a group is missing")
        self.at += 1
        value = self.sum()
        self._expect(_CLOSINGS[opening.text])
        return value

    def _atom(self) -> Any:
        token = self._peek()
        if token is None:
            raise UnreadableError("the formula ends too early")
        if token.kind in ("number", "repeating"):
            self.at += 1
            if self._next_symbol("_"):
                raise UnreadableError("a base inside of a formula")
            return number_of(token)
        if token.kind == "letter":
            self.at += 1
            return self._symbol(token.text)
        if token.is_symbol("{") and (following := self._peek(1)) is not None and following.is_symbol("}"):
            self.at += 2
            return self._atom()
        if token.is_symbol("^", "_"):
            return self._left_index()
        if token.is_symbol("(", "[", "{"):
            return self._group()
        if token.is_symbol("|") or token.is_command("|"):
            self.at += 1
            value = self.sum()
            self._expect("|")
            return sympy.Abs(value)
        if token.kind == "command":
            self.at += 1
            return self._command(token.text)
        raise UnreadableError(f"what is {token.text!r}?")

    def _left_index(self) -> Any:
        r"""Read combinations with their numbers on both sides: `{}_{10}C_3` and `^{10}C_3`."""
        self.at += 1
        above = self._script()
        token = self._peek()
        if token is None or token.text != "C":
            raise UnreadableError("an index on the left")
        self.at += 1
        if not (self._take_symbol("_") or self._take_symbol("^")):
            raise UnreadableError("an index is missing")
        return sympy.binomial(above, self._script())

    def _combinations(self) -> Any:
        r"""Read the rest of `C(10,3)`, `C_{10}^3` and `C^3_{10}` after the letter; None if it is something else."""
        start = self.at
        closing = ")" if self._take_symbol("(") else ""
        numbers: list[Any] = []
        while len(numbers) < 2:
            if not closing and not (self._take_symbol("_") or self._take_symbol("^")):
                break
            token = self._peek(1 if self._next_symbol("{") else 0)
            if token is None or token.kind != "number" or not token.text.isdigit() or len(token.text) > 4:
                break
            numbers.append(sympy.Integer(int(token.text)))
            self.at += 3 if self._next_symbol("{") else 1
            if closing and not self._take_symbol("," if len(numbers) == 1 else ")"):
                break
        if len(numbers) == 2 and (not closing or self._tokens[self.at - 1].is_symbol(")")):
            return sympy.binomial(max(numbers), min(numbers))
        self.at = start
        return None

    def _symbol(self, name: str) -> Any:
        if name == "C" and (combinations := self._combinations()) is not None:
            return combinations
        if self._take_symbol("_"):
            return sympy.Symbol(f"{name}_{self._index()}")
        primes = ""
        while self._take_symbol("'"):
            primes += "'"
        following = self._peek()
        if name + primes in ("f", "g", "h", "f'", "g'") and following is not None and following.is_symbol("("):
            return sympy.Function(name + primes)(self._group())
        if name == "e" and not primes:
            return sympy.E
        return sympy.I if name == "i" and not primes else sympy.Symbol(name + primes)

    def _index(self) -> str:
        token = self._peek()
        if token is None:
            raise UnreadableError("an index is missing")
        if not self._take_symbol("{"):
            self.at += 1
            return token.text
        texts = []
        while (token := self._peek()) is not None and not token.is_symbol("}"):
            texts.append(token.text)
            self.at += 1
        self._expect("}")
        return "".join(texts)

    def _command(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return self._function(name)
        if name in GREEK:
            return self._symbol(name)
        atom = _ATOMS.get(name)
        if atom is None:
            raise UnreadableError(f"what is \\{name}?")
        return atom(self)

    def _function(self, name: str) -> Any:
        function, exponent = _FUNCTIONS[name], None
        if name == "log" and self._take_symbol("_"):
            base = self._group() if self._next_symbol("{") else self._atom_digit()
            function = lambda value: sympy.log(value, base)  # noqa: E731
        if self._take_symbol("^"):
            exponent = self._script()
            if exponent == -1 and name in _INVERSES:
                function, exponent = _INVERSES[name], None
        if self._next_symbol("(", "{", "["):
            argument = self._group()
        else:
            negative = self._take_symbol("-")
            argument = self._implicit_product(stops_at_functions=True)
            argument = -argument if negative else argument
        if argument.has(DEGREE) and name in _TRIGONOMETRIC:
            argument = argument.subs(DEGREE, sympy.pi / 180)
        if name in ("ln", "log", "lg") and argument == 0:
            raise UnreadableError("a logarithm of zero")
        value = function(argument)
        return value if exponent is None else power(value, exponent)

    def _atom_digit(self) -> Any:
        """Read an argument of LaTeX without braces: one digit of a number, or an atom."""
        token = self._peek()
        if token is not None and token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            rest = token._replace(text=token.text[1:], spaced=False)
            self._tokens = [*self._tokens[: self.at], rest, *self._tokens[self.at + 1 :]]
            return sympy.Integer(token.text[0])
        return self._group() if self._next_symbol("{") else self._atom()

    def fraction(self) -> Any:
        above = self._atom_digit()
        below = self._atom_digit()
        if below == 0:
            raise UnreadableError("a division by zero")
        return above / below

    def unit_vector(self) -> Any:
        r"""Read the argument of `\\hat{i}`, which is `i` as in `3i + 4j`."""
        value = self._atom_digit()
        if value not in (sympy.I, sympy.Symbol("j"), sympy.Symbol("k")):
            raise UnreadableError("a vector")
        return value

    def root(self) -> Any:
        degree: Any = sympy.Integer(2)
        if self._next_symbol("["):
            degree = self._group()
        if degree == 0:
            raise UnreadableError("a root of degree zero")
        radicand = self._group() if self._next_symbol("{", "(") else self._atom()
        if degree.is_Integer and degree % 2 and radicand.is_Rational and radicand < 0:
            return -power(-radicand, 1 / degree)
        return power(radicand, 1 / degree)

    def binomial(self) -> Any:
        above, below = self._atom_digit(), self._atom_digit()
        is_long = above.is_Number and not -MAX_FACTORIAL <= above <= MAX_FACTORIAL
        return _binomial(above, below) if is_long else sympy.binomial(above, below)

    def rounded(self, closing: str, function: Callable[[Any], Any]) -> Any:
        value = self.sum()
        self._expect(closing)
        return function(value)


_ATOMS: dict[str, Callable[[_Formula], Any]] = {
    "frac": _Formula.fraction,
    "sqrt": _Formula.root,
    "binom": _Formula.binomial,
    "pi": lambda _: sympy.pi,
    "infty": lambda _: sympy.oo,
    "lfloor": lambda reader: reader.rounded("rfloor", sympy.floor),
    "lceil": lambda reader: reader.rounded("rceil", sympy.ceiling),
    "i": lambda _: sympy.I,
    "hat": _Formula.unit_vector,
    "vec": _Formula.unit_vector,
    "overrightarrow": _Formula.unit_vector,
}
