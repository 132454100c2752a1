"""Parser of columns in Spark's DDL, without Spark: a mistake is reported before a JVM starts.

Spark receives only the parsed schema, so that Ratchet and Spark cannot read the text differently.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from kafka_ratchet.spark_sink.errors import OptionRefused

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>`(?:[^`]|``)*`)
             | (?P<word>\w+)
             | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
             | (?P<sign>[<>(),:.]) )""",
    re.VERBOSE | re.DOTALL,
)

MAX_DEPTH = 32
"""Maximum depth of nested types; each level is a level of Python's stack."""

DIGITS, PLACES = 10, 0
"""Default digits and decimal places of a decimal, as in Spark."""

MAX_DIGITS = 38
"""Digits of the widest decimal that Spark and every store have."""

EXAMPLE = "Write: user string, amount double"

TYPES = {
    "boolean": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
"""Spark's type names in JSON, by the type names of DDL."""

KNOWN = ", ".join([*TYPES, "decimal(digits,places)", "array<...>", "map<...,...>", "struct<name: ...>"])


Path = tuple[str, ...]
"""Names of nested fields, from the outermost object to the field."""


def read_ddl(text: str) -> StructType:
    """Parse columns such as "user string, amount decimal(12,2) NOT NULL COMMENT 'net', `in` struct<at: timestamp>".

    A column may stand for a field within an object: "customer_id bigint FROM customer.id"; see `read_paths`.

    Raises:
        OptionRefused: the text is not DDL, or has a type outside `KNOWN`; the message names the character.
    """
    return _Parser(text).columns()


def read_paths(text: str) -> dict[str, Path]:
    """Parse the path of each column with FROM, which reads a field of another name.

    Raises:
        OptionRefused: see `read_ddl`.
    """
    parser = _Parser(text)
    parser.columns()
    return parser.paths


class _Parser:
    """Parser of Spark DDL, in one pass from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        """Kind, text and position of each token."""
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                self._refuse(f"{text[at]!r} at character {at + 1} has no meaning here")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self._next = 0
        self.paths: dict[str, Path] = {}
        """Paths of columns with FROM, by name."""

    def columns(self) -> StructType:
        """Parse the whole text into columns."""
        from pyspark.sql.types import StructType

        if not self._tokens:
            raise OptionRefused(f"columns {self._text!r} names no column. {EXAMPLE}")
        fields = self._fields(0)
        if self._next < len(self._tokens):
            self._expected("',' or the end")
        return StructType(fields)

    def _fields(self, depth: int) -> list[StructField]:
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        return fields

    def _field(self, depth: int) -> StructField:
        from pyspark.sql.types import StructField

        name = self._name()
        self._take(":")
        data_type = self._type(depth)
        if depth == 0 and self._take("from"):
            path = [self._name()]
            while self._take("."):
                path.append(self._name())
                if len(path) > MAX_DEPTH:
                    self._refuse(f"more than {MAX_DEPTH} names after FROM")
            self.paths[name] = tuple(path)
        if self._take("not") and not self._take("null"):
            self._expected("NULL after NOT")
        if self._take("comment"):
            kind, _, _ = self._token()
            if kind != "text":
                self._next -= 1
                self._expected("a text in quotes after COMMENT")
        return StructField(name, data_type)

    def _type(self, depth: int) -> DataType:
        from pyspark.sql.types import ArrayType, MapType, StructType

        if depth > MAX_DEPTH:
            self._refuse(f"types are nested more than {MAX_DEPTH} deep")
        kind, word, _ = self._token()
        name = word.lower() if kind == "word" else ""
        if name == "array":
            self._require("<")
            element = self._type(depth + 1)
            self._require(">")
            return ArrayType(element)
        if name == "map":
            self._require("<")
            key = self._type(depth + 1)
            self._require(",")
            value = self._type(depth + 1)
            self._require(">")
            return MapType(key, value)
        if name == "struct":
            self._require("<")
            fields = self._fields(depth + 1)
            self._require(">")
            return StructType(fields)
        if name in {"decimal", "dec", "numeric"}:
            return self._decimal()
        return self._leaf(name)

    def _leaf(self, name: str) -> DataType:
        from pyspark.sql.types import StructField

        if name not in TYPES:
            self._next -= 1
            self._expected(f"a type ({KNOWN})")
        return StructField.fromJson({"name": "", "type": TYPES[name], "nullable": True, "metadata": {}}).dataType

    def _decimal(self) -> DataType:
        from pyspark.sql.types import DecimalType

        digits, places = DIGITS, PLACES
        if self._take("("):
            digits = self._number()
            if self._take(","):
                places = self._number()
            self._require(")")
        if not 0 < digits <= MAX_DIGITS or places > digits:
            self._refuse(
                f"decimal({digits},{places}): a decimal has 1 to {MAX_DIGITS} digits, and no more places than that"
            )
        return DecimalType(digits, places)

    def _number(self) -> int:
        kind, word, _ = self._token()
        if kind != "word" or not word.isascii() or not word.isdecimal() or len(word) > 3:
            self._next -= 1
            self._expected("a number of digits")
        return int(word)

    def _name(self) -> str:
        kind, word, _ = self._token()
        if kind == "quoted":
            return word[1:-1].replace("``", "`")
        if kind != "word":
            self._next -= 1
            self._expected("a name (others than letters, digits and '_' in `backquotes`)")
        return word

    # -- tokens

    def _peek(self) -> str:
        """Return the next word or sign in lower case; empty at the end and before quoted text."""
        if self._next == len(self._tokens):
            return ""
        kind, word, _ = self._tokens[self._next]
        return word.lower() if kind in {"word", "sign"} else ""

    def _take(self, what: str) -> bool:
        found = self._peek() == what
        self._next += found
        return found

    def _require(self, sign: str) -> None:
        if not self._take(sign):
            self._expected(f"'{sign}'")

    def _token(self) -> tuple[str, str, int]:
        self._next += 1
        return self._tokens[self._next - 1] if self._next <= len(self._tokens) else ("end", "", len(self._text))

    def _expected(self, what: str) -> NoReturn:
        if self._next < len(self._tokens):
            _, word, at = self._tokens[self._next]
            self._refuse(f"{word!r} at character {at + 1} where {what} is expected")
        self._refuse(f"it ends where {what} is expected")

    def _refuse(self, reason: str) -> NoReturn:
        raise OptionRefused(f"columns {self._text!r} is not Spark DDL ({reason}). {EXAMPLE}")
