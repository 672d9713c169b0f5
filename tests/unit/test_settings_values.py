"""Durations, sizes, and references to the environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.cli.interpolation import InterpolationError, interpolate
from antiphon.cli.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5ms", 0.005), ("30s", 30), ("2m", 120), ("1h", 3600), ("1.5s", 1.5), ("7", 7), ("1 d", 86400)],
)
def test_durations_are_read_as_seconds(text, seconds):
    """A number with its unit; without one, seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64MB", 64_000_000), ("512KiB", 524_288), ("1gb", 10**9), ("10", 10), ("1.5 KB", 1500)],
)
def test_sizes_are_read_as_bytes(text, size_bytes):
    """Decimal and binary units, in any case."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "ms", "-5s", "5 years", "5s5", "1e3s", "0x10"])
def test_what_is_no_duration_is_refused(text):
    """Anything else is a mistake, not a guess."""
    with pytest.raises(ValueError, match="should be a duration"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_written_quantities_read_back(number):
    """What is shown can be written into the file again."""
    assert parse_size(format_size(number)) == number
    assert parse_duration(format_duration(number / 1000)) == pytest.approx(number / 1000, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "expected", "used"),
    [
        ("plain", "plain", ()),
        ("${env.A}", "1", ("A",)),
        ("http://${env.A}:${env.B}/v1", "http://1:2/v1", ("A", "B")),
        ("${env.NONE:=8080}", "8080", ()),
        ("${env.NONE:=}", "", ()),
        ("${env.EMPTY:=x}", "x", ()),
        ("${env.EMPTY}", "", ("EMPTY",)),
        ("${env.A:=x}", "1", ("A",)),
        ("$${env.A}", "${env.A}", ()),
        ("cost: $5", "cost: $5", ()),
    ],
)
def test_references_are_replaced(text, expected, used):
    """By the variable, or the default where it is unset or empty."""
    assert interpolate(text, {"A": "1", "B": "2", "EMPTY": ""}) == (expected, used)


@pytest.mark.parametrize("text", ["${A}", "${env.}", "${env.A", "${secret.A}", "${env.a-b}"])
def test_other_references_are_refused(text):
    """A misspelt reference would otherwise be sent as a key or an address."""
    with pytest.raises(InterpolationError, match="is not a reference"):
        interpolate(text, {"A": "1"})


def test_a_missing_variable_is_named():
    """With the way to give a default."""
    with pytest.raises(
        InterpolationError, match=r"KEY is not set; set it, or give a default: \$\{env\.KEY:=…\}"
    ):
        interpolate("${env.KEY}", {})


def test_values_that_are_read_are_not_read_again():
    """A variable's own value is never taken for a reference."""
    assert interpolate("${env.A}", {"A": "${env.B}"}) == ("${env.B}", ("A",))
