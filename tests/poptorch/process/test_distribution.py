"""Libraries that ask which `poptorch` is installed."""

import importlib.metadata
import subprocess

import poptorch
from helpers.warm_python import python
from poptorch._wrapper import distribution


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("poptorch") == poptorch.__version__
    own = importlib.metadata.distribution("poptorch")
    assert own.metadata["Name"] == "poptorch"
    assert own.read_text("RECORD") is None


def test_other_names_are_not_claimed():
    finder = distribution.OwnDistributionFinder()
    other = finder.Context(name="popart")
    assert list(finder.find_distributions(other)) == []
    assert len(list(finder.find_distributions(finder.Context()))) == 1
    assert finder.find_spec("poptorch") is None


def test_all_distributions_can_be_listed():
    names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
    assert names.count("poptorch") == 1
    assert "torch" in importlib.metadata.packages_distributions()


def test_announcing_again_changes_nothing():
    distribution.announce()
    names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
    assert names.count("poptorch") == 1


def test_an_installed_distribution_of_that_name_is_refused_still(tmp_path):
    folder = tmp_path / "poptorch-3.3.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: poptorch\nVersion: 3.3.0\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import poptorch"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True)
    assert "another distribution called poptorch 3.3.0 is installed" in done.stderr
