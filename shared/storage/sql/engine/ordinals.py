"""Where the next page of a list begins: at a row's place in the order of insertion, whatever was inserted since."""

from sqlalchemy import ScalarSelect, Table, select


def ordinal_of(table: Table, id: str) -> ScalarSelect[int]:
    """Return the place of the row of that id; nothing is before or beyond one that is not there."""
    return select(table.c.ordinal).where(table.c.id == id).scalar_subquery()
