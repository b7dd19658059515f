"""Collections of vectors in databases: one interface for each database.

Each database has one class in ``bertflow/databases/``, which derives from ``AbstractCollection`` and needs an extra.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pkgutil import resolve_name
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from bertflow.array_types import Float32
from bertflow.errors import BertflowError, DataError, UsageError, reason_of
from bertflow.retrieval.address import COLLECTIONS, Address, parse_address

Given = TypeVar("Given")
Id: TypeAlias = str | int
Part: TypeAlias = dict[str, Any]
"""Rows of a collection, as JSON: a range of keys, or places in one version of it."""


@dataclass(frozen=True)
class CollectionFacts:
    """What is known of a collection.

    Attributes:
        n: Rows, also those without a vector.
        dim: Width of a vector.
        metric: cosine, dot or euclidean, by which its index searches; None if nothing says so.
        index: Its index in the database's own words, for example IVF_HNSW_SQ; None without one.
        id: Column of the ids.
        vector: Column of the vectors.
        calibrator: Digest of the calibrator that its rows went through, kept in the database by ``create``;
            None if it was not made so.
        stored: Type of the numbers of its vectors, as NumPy calls it.
    """

    n: int
    dim: int
    metric: str | None
    index: str | None
    id: str
    vector: str
    calibrator: str | None = None
    stored: str = "float32"


@dataclass(frozen=True)
class CollectionRows:
    """Some rows, as they are read and written at a time.

    Attributes:
        ids: Ids of the database; UUIDs as text.
        vectors: float32 (n, dim).
        payload: Whatever else the rows hold, one entry a row: a list, or an Arrow table. That of ``fetch`` is a list of
            mappings by column; that of ``read`` is for ``upsert`` into a collection of the same kind.
        bad: Rows without a vector that could be read, whose ``vectors`` are 0: what is wrong, by their place.
    """

    ids: list[Id]
    vectors: Float32
    payload: Any
    bad: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def kept(self, places: Sequence[int], vectors: Float32) -> "CollectionRows":
        """Rows at some places, with other vectors, which are those of these places already."""
        payload = self.payload.take(places) if hasattr(self.payload, "take") else [self.payload[at] for at in places]
        return replace(self, ids=[self.ids[at] for at in places], vectors=vectors, payload=payload, bad={})


@dataclass(frozen=True)
class Switch:
    """What a user types so that a new collection takes the place of the one in use, and what undoes it."""

    forward: list[str]
    back: list[str]


class AbstractOpened(ABC):
    """What is open until it is closed: a context, which closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


class AbstractCollection(AbstractOpened):
    """An open collection, or the name of one that is yet to be made.

    Errors of the database become ``DataError`` in one line that names the address: each method of a subclass that is
    declared here goes through ``_told``.

    Args:
        address: Where it is.

    Raises:
        UsageError: If the address has options that this database does not know.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """What the database's client raises."""
    takes_options: ClassVar[bool] = False
    """Whether its addresses have other options than vector and id."""

    def __init_subclass__(cls) -> None:
        for name in vars(cls).keys() & {"__init__", *AbstractCollection.__abstractmethods__}:
            one: Any = vars(cls)[name]
            setattr(cls, name, property(_told(one.fget)) if name == "facts" else _told(one))

    def __init__(self, address: Address) -> None:
        if address.options and not self.takes_options:
            here, odd = replace(address, options={}), f"{min(address.options)!r} after the '?'"
            raise UsageError(f"{here} has {odd}, which {address.kind} does not know. Known: vector, id.")
        self.address = address

    @abstractmethod
    def exists(self) -> bool:
        """Whether it is there."""

    @property
    @abstractmethod
    def facts(self) -> CollectionFacts:
        """What is known of it, as it is now.

        Raises:
            DataError: If it is missing.
            UsageError: If the column of vectors or ids has to be chosen; the message names those that are possible.
        """

    @abstractmethod
    def parts(self, rows: int) -> list[Part]:
        """Cut it into parts of about this many rows, which stay the same while others write to it.

        Raises:
            DataError: If an id is missing, or occurs twice.
        """

    @abstractmethod
    def read(self, part: Part) -> CollectionRows:
        """The rows of a part, always in the same order; also those without a vector (``CollectionRows.bad``)."""

    @abstractmethod
    def create(self, source: Self, dim: int, calibrator: str) -> None:
        """Make it: the columns of ``source``, vectors of width ``dim`` for cosine, and no row.

        Args:
            source: A collection of the same kind.
            dim: Width of a vector.
            calibrator: Digest that is kept with it, for ``facts``.

        Raises:
            DataError: If it is there already.
        """

    @abstractmethod
    def upsert(self, source: Self, part: Part, rows: CollectionRows) -> None:
        """Write the rows that were made of a part of ``source``; those that are there already are there once."""

    @abstractmethod
    def finish(self, source: Self) -> None:
        """Build the index for cosine, as ``source`` has one, or the database's own default; may be called again."""

    @abstractmethod
    def search(self, queries: Float32, k: int, exact: bool = False) -> list[list[Id]]:
        """The ids of the ``k`` nearest rows of each query (q, dim), by the database.

        Args:
            queries: Calibrated as the rows are.
            k: How many; fewer come back where there are fewer rows.
            exact: Compare with every row, without the index.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[Id]) -> CollectionRows:
        """Some rows, in the order of the ids; their payload by column.

        Raises:
            DataError: If one is not there.
        """

    @abstractmethod
    def switch(self, target: Self) -> Switch:
        """How a user lets ``target`` take the place of this collection, and how to go back; nothing is changed."""

    def vectors_of(self, ids: Sequence[Id]) -> Float32:
        """The vectors (n, dim) of some rows, in the order of the ids.

        Raises:
            DataError: If one is not there, or has none.
        """
        rows = self.fetch(ids)
        for at, reason in rows.bad.items():
            raise DataError(f"{self.address}, row {ids[at]!r}: {reason}")
        return rows.vectors

    def in_order(self, ids: Sequence[Id], found: Mapping[Id, Given]) -> list[Given]:
        """What was found for each of some ids, in their order.

        Raises:
            DataError: If an id was not found.
        """
        if missing := [one for one in ids if one not in found]:
            raise DataError(f"{self.address} has no row {missing[0]!r}. Was it removed?")
        return [found[one] for one in ids]


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a collection, in which an error of its database becomes one line with the address."""

    @wraps(method)
    def tells(self: AbstractCollection, *given: Any, **named: Any) -> Any:
        try:
            return method(self, *given, **named)
        except BertflowError:
            raise
        except self.errors as error:
            reason = re.sub(r", \S+\.rs:\d.*", "", reason_of(error))  # a place in the source of a client
            raise DataError(f"{self.address}: {reason}.") from None

    return tells


def open_collection(address: str | Address) -> AbstractCollection:
    """Open a collection, or prepare to make it, by its address.

    Raises:
        UsageError: If the address cannot be read.
        MissingExtraError: If the database's client is not installed.
        DataError: If the database cannot be reached.
    """
    found = parse_address(str(address))
    opened: AbstractCollection = resolve_name(COLLECTIONS[found.kind])(found)
    return opened
