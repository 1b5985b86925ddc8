"""Pages in a real browser, narrow and wide.

Needs Chromium: any of ``BROWSERS`` on the PATH, or ``ABELE_BROWSER``, the path of one.
``scripts/test --thorough`` installs Debian's where it can.
"""

import os
import re
import shutil
import subprocess

import pytest

from abele.report import comparison
from abele.report.page import page
from helpers.reported import journal_of, run_before, run_of

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def browser():
    named = os.environ.get("ABELE_BROWSER")
    path = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(
            f"none of {', '.join(BROWSERS)} is on the PATH, and ABELE_BROWSER is not set; "
            "scripts/test --thorough installs one"
        )
    return path


CLICKS = """
<script>
const said = [];
for (const link of document.querySelectorAll("nav a")) {
  link.click();
  const target = document.getElementById(location.hash.slice(1));
  if (!target || link.hash !== location.hash) said.push("leads nowhere: " + link.textContent);
}
const all = [...document.querySelectorAll("summary")];
for (const summary of all) {
  const folded = summary.parentElement;
  const open = folded.open;
  summary.click();
  if (folded.open === open) said.push("does not open: " + summary.textContent);
}
const wide = document.documentElement.scrollWidth - window.innerWidth;
if (wide > 0) said.push("too wide by " + wide);
document.body.textContent = "clicked " + all.length + ": " + (said.join("; ") || "all well");
</script>
"""


ENDED = ("stage", "capture"), ("end", "finished")


def introduction():
    return page(run_of("introduction"), journal_of(*ENDED))


def failed():
    """Errors with long words, many lines, and a run that was never built."""
    errors = ("error", "x" * 300), ("error", "line\n" * 50), ("end", "failed")
    return page(run_before(), journal_of(("stage", "capture"), *errors))


def compared():
    one, other = run_of("dense"), run_of("introduction")
    first, second = (one, journal_of(*ENDED)), (other, journal_of(*ENDED, computed=0.1))
    return comparison.page(first, second, ("first", "second"))


@pytest.mark.parametrize(
    ("make", "width"), [(introduction, 500), (introduction, 1200), (failed, 500), (compared, 500)]
)
def test_everything_that_can_be_clicked_opens_and_nothing_is_too_wide_then(
    browser, make, width, tmp_path
):
    text = make()
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{CLICKS}</body>"))
    flags = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [browser, *flags, f"--window-size={width},700", f"file://{tmp_path / 'page.html'}"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120, text=True)
    (clicked,) = re.findall(r"clicked (\d+): all well", done.stdout)
    assert int(clicked) == text.count("<summary>")
    assert int(clicked) > 1 or make is not introduction
