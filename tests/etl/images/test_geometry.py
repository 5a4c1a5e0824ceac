"""Rules of geometry: where a source lies in a stored image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelens.etl.images.geometry import letterbox

pytestmark = pytest.mark.unit
SIDES = st.integers(1, 3000)


@given(width=SIDES, height=SIDES, target_width=st.integers(1, 600), target_height=st.integers(1, 600))
def test_a_letterbox_shows_the_whole_source_within(width, height, target_width, target_height):
    placement = letterbox(width, height, target_width, target_height)
    for x, y in ((0, 0), (width, height)):
        assert -1e-6 <= x * placement.scale_x + placement.offset_x <= target_width + 1e-6
        assert -1e-6 <= y * placement.scale_y + placement.offset_y <= target_height + 1e-6
    # One pair of sides is filled, up to rounding to whole pixels.
    assert placement.scaled_width == target_width or placement.scaled_height == target_height
