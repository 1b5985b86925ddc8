"""Text in files and of other processes is UTF-8, whatever the locale of the process is."""

import ast
from pathlib import Path

import abele
from abele.storage import atomic

SOURCES = Path(abele.__file__).parents[1]
STARTS = ("run", "Popen", "check_output")
NAMES = {"open", "fdopen", "NamedTemporaryFile", "FileHandler", "read_text", "write_text", *STARTS}


def without_encoding(tree):
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in NAMES:
            continue
        given = {each.arg for each in call.keywords}
        modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
        text = not any(isinstance(each, str) and "b" in each for each in modes)
        owner = ast.unparse(call.func).rpartition(".")[0]
        asks = (
            (name == "open" and not owner and text)
            or (name == "open" and modes and call.args[0] is call.args[-1] and text)
            or (name in ("fdopen", "NamedTemporaryFile") and modes and text)
            or name == "FileHandler"
            or (name == "read_text" and not call.args)
            or (name == "write_text" and owner and owner != "atomic")
            or (name in STARTS and bool(given & {"text", "universal_newlines"}))
        )
        if asks and "encoding" not in given and not owner.startswith("os.path"):
            yield call


def test_no_text_depends_on_the_locale():
    found = [
        f"{path.relative_to(SOURCES)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(SOURCES.rglob("*.py"))
        if any(f"{name}(" in (text := path.read_text(encoding="utf-8")) for name in NAMES)
        for call in without_encoding(ast.parse(text))
    ]
    assert found == []


def test_bytes_that_are_no_utf_8_are_written_as_escapes(tmp_path):
    atomic.write_text(tmp_path / "page", "caf\u00e9 \udcff \ud800")
    assert (tmp_path / "page").read_bytes() == b"caf\xc3\xa9 \\udcff \\ud800"
