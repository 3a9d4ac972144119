"""A price book: prices, ratios and powers of network parts, each with its source; inferred ones carry bounds.

A book is a YAML file; `books/book_a.yaml` and `books/book_b.yaml` are shipped, and the pattern for your own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inputs import yaml_file
from inputs.errors import InputError, dotted, shown
from inputs.whole_file import Unreadable
from inputs.yaml_file import YamlError, YamlFile

BOOKS = {"A": Path(__file__).parent / "books" / "book_a.yaml", "B": Path(__file__).parent / "books" / "book_b.yaml"}

NotNegative = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]


class PriceBookError(InputError):
    """A price book that cannot be used; the message names the file, the key, the value and the remedy."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bounds(_Section):
    """Between which values an inferred figure can lie, in the figure's own unit."""

    low: NotNegative
    high: NotNegative

    @model_validator(mode="after")
    def _apart(self) -> Bounds:
        if not self.low < self.high:
            raise ValueError(
                f"low {self.low:g} is not below high {self.high:g}; a figure without doubt is not inferred"
            )
        return self


class Quote(_Section):
    """One figure of a book, in the unit of its section. `inferred` is set when nobody published it."""

    value: NotNegative
    source: str = Field(min_length=1)
    inferred: Bounds | None = None

    @model_validator(mode="after")
    def _within_bounds(self) -> Quote:
        if self.inferred and not self.inferred.low <= self.value <= self.inferred.high:
            raise ValueError(
                f"value {self.value:g} lies outside its bounds {self.inferred.low:g} to {self.inferred.high:g}"
            )
        return self


class RatioQuote(Quote):
    """A quoted ratio; zero would price a part at nothing."""

    value: Positive


class Prices(_Section):
    """Unit prices in USD."""

    nic_400g: Quote
    module_400g: Quote
    switch_port_400g: Quote
    ocs_port: Quote


class ControlNetwork(_Section):
    """The control network of an OCS, in USD: either `per_gpu`, or the parts of one 100G link per node."""

    per_gpu: Quote | None = None
    nic_100g: Quote | None = None
    module_100g: Quote | None = None
    switch_port_100g: Quote | None = None

    @model_validator(mode="after")
    def _one_way(self) -> ControlNetwork:
        parts = (self.nic_100g, self.module_100g, self.switch_port_100g)
        if (self.per_gpu is None) == any(part is None for part in parts) or (self.per_gpu and any(parts)):
            raise ValueError("give either per_gpu, or all of nic_100g, module_100g and switch_port_100g")
        return self

    def usd_per_gpu(self, gpus_per_node: int) -> float:
        """NIC + two modules + one switch port per node, shared by its GPUs; or the book's own figure per GPU."""
        if self.per_gpu is not None:
            return self.per_gpu.value
        parts = (self.nic_100g, self.module_100g, self.module_100g, self.switch_port_100g)
        return sum(part.value for part in parts if part is not None) / gpus_per_node


class Ratios(_Section):
    """Plain ratios."""

    fr4_module_to_module_400g: RatioQuote


class Powers(_Section):
    """Power in W. A part without a figure is left out of every total, and the output says so."""

    switch_port_400g: Quote
    ocs_port: Quote
    nic_400g: Quote | None = None
    module_400g: Quote | None = None
    module_fr4: Quote | None = None
    control_network_per_gpu: Quote | None = None


class PriceBook(_Section):
    """Everything a cost needs, with a source for each figure."""

    name: str = Field(min_length=1)
    about: str = ""
    prices_usd: Prices
    control_network: ControlNetwork
    ratios: Ratios
    power_w: Powers

    def quotes(self) -> Iterator[tuple[str, Quote]]:
        """Every figure with its dotted key, such as `prices_usd.nic_400g`."""
        for section in ("prices_usd", "control_network", "ratios", "power_w"):
            for field in type(getattr(self, section)).model_fields:
                quote = getattr(getattr(self, section), field)
                if quote is not None:
                    yield f"{section}.{field}", quote

    def inferred(self) -> dict[str, Quote]:
        """The figures nobody published, by dotted key."""
        return {key: quote for key, quote in self.quotes() if quote.inferred}

    def with_value(self, key: str, value: float) -> PriceBook:
        """This book with the figure at dotted `key` set to `value`, no longer inferred. `KeyError` if there is none."""
        quotes = dict(self.quotes())
        section, field = key.split(".")
        replaced = quotes[key].model_copy(update={"value": value, "inferred": None})
        return self.model_copy(update={section: getattr(self, section).model_copy(update={field: replaced})})

    def corners(self) -> Iterator[PriceBook]:
        """This book at every combination of the low and high ends of its inferred figures.

        A cost is linear in each figure and a ratio of two costs monotone in each, so both have their extremes here.
        """
        inferred = self.inferred()
        ends = [(quote.inferred.low, quote.inferred.high) for quote in inferred.values() if quote.inferred]
        for values in itertools.product(*ends):
            book = self
            for key, value in zip(inferred, values, strict=True):
                book = book.with_value(key, value)
            yield book


def load(book: str | Path) -> PriceBook:
    """The shipped book of that name (`A`, `B`), or the YAML file at that path. Raises `PriceBookError`."""
    path = BOOKS.get(str(book).upper()) or Path(book)
    try:
        found = yaml_file.read(path)
    except Unreadable as error:
        raise PriceBookError(
            f"price book {error}; give a YAML file, or one of the shipped books {', '.join(BOOKS)}"
        ) from None
    except YamlError as error:
        raise PriceBookError(f"price book {error}") from None
    if not isinstance(found.data, dict):
        raise PriceBookError(f"price book {path}: expected keys and values; {BOOKS['A']} shows the form")
    try:
        return PriceBook.model_validate(found.data)
    except ValidationError as error:
        raise PriceBookError(*_problems(error, found), f"{BOOKS['A']} shows the form") from None


def _problems(error: ValidationError, book: YamlFile) -> Iterator[str]:
    for problem in error.errors():
        got = problem["input"]
        value = "" if isinstance(got, (dict, BaseModel)) else f" = {shown(got)}"
        yield f"price book {book.place(problem['loc'])}: {dotted(problem['loc']) or '(top)'}{value}: {problem['msg']}"
