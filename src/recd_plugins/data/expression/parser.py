"""The parser of expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recd_plugins.data.expression.literals import Literal, moment
from recd_plugins.data.expression.tree import (
    COMPARE,
    Among,
    Comparison,
    IsNull,
    Joined,
    Node,
    Not,
    TextRange,
)
from recd_plugins.errors import RegistryError

__all__ = ["error_at", "parsed"]

TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<date>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?)
      | (?P<number>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<quoted>`[^`]+`)
      | (?P<word>[^\W\d][\w.]*)
      | (?P<sign>==|!=|<=|>=|<|>|[()\[\],])
    """,
    re.VERBOSE,
)
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})


def parsed(text: str, where: str) -> Node:
    """The tree of a text; `where` is the option that holds the text."""
    return _Parser(text, where).parsed()


def error_at(text: str, where: str, span: TextRange, message: str) -> RegistryError:
    """An error that shows the place in the text."""
    marks = "^" * max(1, span.stop - span.start)
    return RegistryError(f"{message}\n  {text}\n  {' ' * span.start}{marks}", where)


@dataclass(frozen=True)
class Token:
    """A word, a literal or a sign of the text."""

    kind: str
    text: str
    span: TextRange


class _Parser:
    """Reads a text from left to right, with one function per rule."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._tokens = list(_tokens(text, where))
        self._at = 0

    def parsed(self) -> Node:
        if not self._tokens:
            raise RegistryError(
                "is empty. Write which rows to take, or take the option out.", self._where
            )
        try:
            found = self._joined("or", lambda: self._joined("and", self._negated))
        except RecursionError:
            message = "has too many parentheses within each other."
            raise RegistryError(message, self._where) from None
        if self._at < len(self._tokens):
            raise self._wrong("`and`, `or` or the end")
        return found

    def _joined(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _negated(self) -> Node:
        if self._take("not"):
            return Not(self._negated())
        if self._take("("):
            found = self._joined("or", lambda: self._joined("and", self._negated))
            self._need(")")
            return found
        return self._test()

    def _test(self) -> Node:
        start = self._next
        if start is not None and self._is_literal(start):
            return self._bounded(start.span.start)
        column = self._column()
        if self._take("is"):
            negated = self._take("not")
            found = IsNull(column.text, TextRange(column.span.start, self._need("null").span.stop))
            return Not(found) if negated else found
        negated = self._take("not")
        if negated or self._follows("in"):
            self._need("in")
            values, stop = self._list()
            among = Among(column.text, TextRange(column.span.start, stop), values)
            return Not(among) if negated else among
        sign = self._sign()
        if sign is None:  # a column of true and false
            return Comparison(column.text, column.span, "==", True)
        value, end = self._literal()
        return Comparison(column.text, TextRange(column.span.start, end.stop), sign, value)

    def _bounded(self, start: int) -> Node:
        """`LITERAL < column`, and `LITERAL < column < LITERAL`."""
        low, _ = self._literal()
        sign = self._sign()
        if sign is None:
            raise self._wrong("a comparison, as `==` or `<`")
        column = self._column()
        first = Comparison(column.text, TextRange(start, column.span.stop), MIRRORED[sign], low)
        sign = self._sign()
        if sign is None:
            return first
        high, end = self._literal()
        second = Comparison(column.text, TextRange(column.span.start, end.stop), sign, high)
        return Joined("and", (first, second))

    def _list(self) -> tuple[tuple[Literal, ...], int]:
        close = "]" if self._take("[") else ")"
        if close == ")":
            self._need("(")
        values = [self._literal()[0]]
        while self._take(","):
            values.append(self._literal()[0])
        return tuple(values), self._need(close).span.stop

    def _column(self) -> Token:
        token = self._next
        word = token is not None and token.kind == "word" and token.text not in KEYWORDS
        if token is None or not (word or token.kind == "quoted"):
            raise self._wrong("the name of a column")
        self._at += 1
        return token

    def _sign(self) -> str | None:
        token = self._next
        if token is None or token.text not in COMPARE or token.kind != "sign":
            return None
        self._at += 1
        return token.text

    def _literal(self) -> tuple[Literal, TextRange]:
        token = self._next
        if token is not None and token.kind == "word" and token.text == "null":
            raise self._wrong("a value; of nulls write `is null` or `is not null`")
        if token is None or not self._is_literal(token):
            raise self._wrong('a value: a number, a date, true, false, or a "text" in quotes')
        self._at += 1
        try:
            return _value(token), token.span
        except ValueError as error:
            raise error_at(self._text, self._where, token.span, f"{error}.") from error

    @staticmethod
    def _is_literal(token: Token) -> bool:
        plain = token.kind in ("date", "number", "text")
        return plain or (token.kind == "word" and token.text in ("true", "false"))

    @property
    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _follows(self, text: str) -> bool:
        token = self._next
        return token is not None and token.kind in ("word", "sign") and token.text == text

    def _take(self, text: str) -> bool:
        found = self._follows(text)
        self._at += found
        return found

    def _need(self, text: str) -> Token:
        token = self._next
        if token is None or not self._take(text):
            raise self._wrong(f"`{text}`")
        return token

    def _wrong(self, wanted: str) -> RegistryError:
        token, end = self._next, len(self._text.rstrip())
        span = TextRange(end, end + 1) if token is None else token.span
        return error_at(self._text, self._where, span, f"here must be {wanted}.")


def _tokens(text: str, where: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = TOKENS.match(text, at)
        if found is None:
            raise error_at(text, where, TextRange(at, at + 1), _unknown(text[at]))
        kind = found.lastgroup or ""
        if kind != "space":
            words = found.group()[1:-1] if kind in ("text", "quoted") else found.group()
            yield Token(kind, words, TextRange(*found.span()))
        at = found.end()


def _unknown(sign: str) -> str:
    if sign == "=":
        return "`=` compares nothing: write `==`."
    if sign in "\"'`":
        return "this quote is never closed."
    if sign in "&|!":
        return f"{sign!r} means nothing here: write `and`, `or` and `not`."
    return (
        f"{sign!r} means nothing here: an expression compares columns with values, by == != < <= "
        "> >= in, is null, and joins that by and, or, not and parentheses."
    )


def _value(token: Token) -> Literal:
    if token.kind == "text":
        return token.text
    if token.kind == "word":
        return token.text == "true"
    if token.kind == "date":
        return moment(token.text)
    digits = token.text.replace("_", "")
    return float(digits) if set(digits) & set(".eE") else int(digits)
