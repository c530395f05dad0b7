"""Tables of a plan, as a terminal shows them."""

from __future__ import annotations

from rich.cells import cell_len

from recd_plugins.planning.explain.words import aligned


def test_columns_stand_below_each_other_whatever_the_letters() -> None:
    """Chinese letters take two cells each, combining ones none."""
    names = ["table", "商品", "cafe\u0301", "user_id"]
    lines = list(
        aligned([[name, "row_wise", number] for name, number in zip(names, "1234", strict=True)])
    )
    assert {cell_len(line) for line in lines} == {len("user_id  row_wise  1")}
    assert {cell_len(line[: line.index("row_wise")]) for line in lines} == {len("user_id  ")}
    assert [line[-1] for line in lines] == list("1234")
