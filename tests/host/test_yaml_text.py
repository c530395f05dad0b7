"""Property tests: values written as YAML are read as they were, by our reader and by PyYAML's."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from recd_plugins.config.yaml_text import read_yaml, to_yaml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
ODD = ["1e3", "1:30", "010", "on", "~", "new\nline", "a\x85b", "a\u2028b", "2020-01-01", "=", "<<"]


@given(st.dictionaries(texts, values, max_size=3), st.sampled_from([True, False, None]))
@example({"names": ODD, "by name": dict.fromkeys(ODD, 1e-5)}, True)
@example({"names": ODD, "by name": dict.fromkeys(ODD, 1e-5)}, False)
def test_what_is_written_is_read(made: dict[str, object], flow: bool | None) -> None:
    text = to_yaml(made, flow=flow)
    assert read_yaml(text, "here").values == made
    assert yaml.safe_load(text) == made


@pytest.mark.parametrize("text", ODD)
def test_a_text_in_flow_is_one_line(text: str) -> None:
    written = to_yaml([{text: text}], flow=True, width=10_000)
    assert len(written.splitlines()) == 1
