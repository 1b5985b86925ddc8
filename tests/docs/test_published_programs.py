"""The page of published programs says what its record says."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "published_programs.md").read_text()


def test_the_networks_are_those_of_the_record():
    table = PAGE.partition("<!-- networks -->")[2].partition("<!-- end networks -->")[0]
    source = re.search(r"\]\(\.\./(benchmarks/records/published-models_\S+\.json)\)", table)
    assert source is not None
    networks = json.loads((ROOT / source[1]).read_text())["networks"]
    rows = re.findall(r"\| `(\w+)` \| (\d+) of 8 \| (\d+) of (\d+) \| (\S+) \|", table)
    assert {name: tuple(map(float, rest)) for name, *rest in rows} == {
        name: (
            row["losses equal"],
            row["parameters equal"],
            row["parameters"],
            float(f"{row['largest parameter gap']:.1g}"),
        )
        for name, row in networks.items()
    }
    assert f"Target {networks['BertForMaskedLM']['target']}," in table


def test_the_sentence_about_bits_holds():
    assert "With one thread the bits are the same." in PAGE
    newest = sorted((ROOT / "benchmarks" / "records").glob("published-models_*_1t_*.json"))[-1]
    record = json.loads(newest.read_text())
    assert record["environment"]["threads"] == 1
    assert all(row["largest parameter gap"] == 0 for row in record["networks"].values())
    assert all(row["largest loss gap"] == 0 for row in record["networks"].values())
