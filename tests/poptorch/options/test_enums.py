"""The enumerations have the original's members and values."""

import enum
import json
from pathlib import Path

import pytest

from poptorch import enums

API = json.loads(Path(__file__).parents[1].joinpath("option_api.json").read_text())


@pytest.mark.parametrize("name", sorted(API["enums"]))
def test_members_and_values(name):
    members = {member.name: member.value for member in getattr(enums, name)}
    assert members == API["enums"][name]


@pytest.mark.parametrize("name", ["MatMulSerializationMode", "OverlapMode"])
def test_two_enumerations_hold_strings(name):
    assert not issubclass(getattr(enums, name), int)


def test_there_are_no_others():
    names = {k for k, v in vars(enums).items() if isinstance(v, enum.EnumMeta)}
    assert names == set(API["enums"])


def test_members_compare_equal_to_the_integers_that_options_store():
    assert enums.OutputMode.All == 2
