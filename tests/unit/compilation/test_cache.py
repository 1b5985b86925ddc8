"""The folder of executables: hits, misses that explain themselves, damage, and several writers."""

import dataclasses
import errno
import itertools
import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from abele import CacheWarning, ExecutableCache, build
from abele.compilation import executable_file, keys, verdict
from abele.compilation.keys import why_parts_differ
from abele.step.config import StepConfig
from abele.storage import files
from helpers import altered, cache_writers
from helpers.fakes import Keeping
from helpers.models import MODELS
from helpers.runs import captured
from helpers.warm_python import run_program

AFFINE = MODELS["affine"]
CONFIG = StepConfig(training=False)


@pytest.fixture(scope="module")
def programs():
    return captured(AFFINE.fresh(), AFFINE.batch()).programs


def built(programs, cache, target=None, config=CONFIG):
    return build(programs, config, target=target or Keeping(), cache=cache)


def result(made):
    module, batch = AFFINE.fresh(), AFFINE.batch()
    return made.compiled["forward"].run([module.scale.detach(), module.shift, *batch])


def test_the_second_build_is_a_hit_and_compiles_nothing(programs, isolated_cache):
    target = Keeping()
    first, missed = built(programs, isolated_cache, target)
    second, program = built(programs, isolated_cache, target)
    assert (missed.cache, program.cache, target.compilations) == ("miss", "hit", 1)
    assert first.key == second.key == program.executable
    assert "load" in program.seconds
    assert "store" in missed.seconds
    torch.testing.assert_close(result(second), result(first), rtol=0, atol=0)


def test_a_target_without_code_of_its_own_is_not_cached(programs, isolated_cache):
    target = Keeping()
    target.cacheable = False
    assert built(programs, isolated_cache, target)[1].cache == "off"
    assert not isolated_cache.folder.exists()


def test_the_folder_may_be_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ExecutableCache("~/x").folder == tmp_path / "x"


def shorten(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "damage",
    [shorten, lambda data: b"", lambda data: b"PK\x03\x04" * 100, lambda data: bytes(len(data))],
    ids=["cut in half", "empty", "not ours", "zeros"],
)
def test_damage_costs_one_warning_and_a_rebuild(programs, isolated_cache, damage):
    made, _ = built(programs, isolated_cache)
    path = isolated_cache.path(made.key)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(CacheWarning, match=r"could not be used and is rebuilt.*kept as") as caught:
        again, record = built(programs, isolated_cache)
    assert (record.cache, len(caught)) == ("miss", 1)
    torch.testing.assert_close(result(again), result(made), rtol=0, atol=0)
    assert sorted(p.suffix for p in isolated_cache.folder.iterdir()) == [".abele", ".bad"]
    assert built(programs, isolated_cache)[1].cache == "hit"


def test_a_file_under_a_foreign_key_is_set_aside(programs, isolated_cache):
    there, _ = built(programs, isolated_cache, Keeping(isa="there"))
    parts = keys.key_parts(
        there.programs, CONFIG, Keeping(isa="here"), there.key_parts["lowerings"]
    )
    path = isolated_cache.path(keys.key_of(parts))
    isolated_cache.path(there.key).rename(path)
    with pytest.warns(CacheWarning, match=r"target\.isa: there there, here here"):
        assert isolated_cache.load(there.programs, parts, Keeping(isa="here")) is None
    assert path.with_suffix(".bad").exists()


@pytest.mark.parametrize("where", ["", "deeper"], ids=["a file", "below a file"])
def test_a_folder_that_is_a_file_costs_one_warning(programs, tmp_path, where):
    (tmp_path / "taken").write_text("mine")
    cache = ExecutableCache(tmp_path / "taken" / where)
    with pytest.warns(CacheWarning, match=r"could not be cached in .*taken.*Check the") as caught:
        made, record = built(programs, cache)
    assert (record.cache, len(caught)) == ("miss", 1)
    assert (tmp_path / "taken").read_text() == "mine"
    assert result(made)


def test_a_full_disk_costs_one_warning_and_leaves_nothing(programs, isolated_cache, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="No space left on device") as caught:
        made, _ = built(programs, isolated_cache)
    assert len(caught) == 1
    assert os.listdir(isolated_cache.folder) == []
    assert result(made)


def test_a_file_that_cannot_be_read_or_moved_is_no_crash(programs, isolated_cache, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    made, _ = built(programs, isolated_cache)
    with monkeypatch.context() as patched:
        patched.setattr(executable_file, "load", denied)
        patched.setattr(os, "replace", denied)
        with pytest.warns(CacheWarning) as caught:
            again, record = built(programs, isolated_cache)
    texts = [str(w.message) for w in caught]
    assert record.cache == "miss"
    assert ["Permission denied" in text for text in texts] == [True, True]
    assert not any("kept as" in text for text in texts)
    assert os.listdir(isolated_cache.folder) == [f"{made.key}.abele"]
    assert again.key == made.key


# -- why a miss is a miss ------------------------------------------------------------------


def why(programs, cache, **changes):
    return built(programs, cache, **changes)[1].why


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": Keeping(isa="avx2")}, "target.isa: None there, avx2 here"),
        ({"config": StepConfig(training=False, replicas=2)}, "config.replicas: 1 there, 2 here"),
    ],
    ids=["another machine", "another configuration"],
)
def test_a_miss_names_the_part_that_differs(programs, isolated_cache, changes, named):
    built(programs, isolated_cache)
    expected = f"the nearest of the stored executables differs in {named}"
    assert why(programs, isolated_cache, **changes) == expected


def test_a_miss_names_the_program_that_differs(programs, isolated_cache):
    built(programs, isolated_cache)
    other = captured(AFFINE.fresh(), AFFINE.batch(rows=9)).programs
    assert "differs in programs.forward: " in why(other, isolated_cache)


def test_of_many_differences_the_first_are_named(programs, isolated_cache):
    stored = {f"part{i}": i for i in range(9)}
    built(programs, isolated_cache, Keeping(**stored))
    said = why(programs, isolated_cache, target=Keeping(**dict.fromkeys(stored, "x")))
    assert "target.part3: 3 there, x here; and in 5 more" in said
    assert "target.part4" not in said


def test_a_miss_names_no_lowerings_where_something_else_differs():
    stored = {"config": {"replicas": 1}, "lowerings": {"step": "emitted"}, "reasons": {"step": "a"}}
    wanted = {
        "config": {"replicas": 2},
        "lowerings": {"step": "interpreter"},
        "reasons": {"step": "b"},
    }
    assert why_parts_differ(stored, wanted) == ["config.replicas: 1 there, 2 here"]
    assert len(why_parts_differ(stored, {**wanted, "config": stored["config"]})) == 2


def test_the_nearest_executable_explains_a_miss(programs, isolated_cache):
    built(programs, isolated_cache, Keeping(isa="x", system="plan9"))
    built(programs, isolated_cache, Keeping(isa="x", system="linux"))
    program = why(programs, isolated_cache, target=Keeping(isa="y", system="linux"))
    assert program.endswith("differs in target.isa: x there, y here")


def test_unreadable_neighbours_explain_nothing(programs, isolated_cache):
    isolated_cache.folder.mkdir()
    (isolated_cache.folder / "x.abele").write_bytes(b"nonsense")
    (isolated_cache.folder / "folder.abele").mkdir()
    assert why(programs, isolated_cache).endswith("holds no executable yet")


# -- several processes ---------------------------------------------------------------------

WRITERS = Path(cache_writers.__file__)


def writers(job, folder):
    """Runs a job of ``cache_writers.py`` with warnings as errors and returns what it printed."""
    done = run_program("-W", "error", WRITERS, job, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_process_killed_while_writing_leaves_nothing_that_is_loaded(tmp_path):
    halves, whole = map(int, writers("killed", tmp_path))
    assert halves, "no process was killed in the middle: the test shows nothing"
    assert whole == len(list(tmp_path.glob("*.abele")))
    assert len(list(tmp_path.glob("*.part"))) <= 1


def test_stale_partial_files_do_no_harm(programs, isolated_cache):
    made, _ = built(programs, isolated_cache)
    for name in ("tmpx.part", f"{made.key}.abele.part"):
        (isolated_cache.folder / name).write_bytes(b"half of a file")
    assert built(programs, isolated_cache)[1].cache == "hit"


def test_a_process_that_dies_while_it_compiles_lets_the_next_one_compile(tmp_path):
    assert writers("crashing", tmp_path) == ["miss"]


def test_of_processes_that_compile_the_same_at_once_one_compiles(tmp_path):
    outcomes = writers("together", tmp_path)
    assert sorted(outcomes) == ["hit"] * 5 + ["miss"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".abele"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
def test_what_is_no_file_costs_one_warning_and_a_rebuild(programs, isolated_cache, kind):
    """Reading a pipe would wait for a writer, and a device may never end."""
    made, _ = built(programs, isolated_cache)
    path = isolated_cache.path(made.key)
    path.unlink()
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "link to itself": lambda: path.symlink_to(path),
    }[kind]()
    with pytest.warns(CacheWarning, match="could not be used and is rebuilt"):
        _, record = built(programs, isolated_cache)
    assert record.cache == "miss"
    assert path.is_file()


def test_a_pipe_beside_the_executables_does_not_keep_a_miss_waiting(programs, isolated_cache):
    isolated_cache.folder.mkdir()
    os.mkfifo(isolated_cache.folder / "other.abele")
    assert "holds no executable" in isolated_cache.why_missing({})
    assert built(programs, isolated_cache)[1].cache == "miss"


def test_a_name_that_no_file_system_takes_costs_one_warning(programs, tmp_path):
    cache = ExecutableCache(tmp_path / ("x" * 300))
    assert cache.why_missing({}).endswith("holds no executable yet")
    with pytest.warns(CacheWarning, match="File name too long"):
        made, record = built(programs, cache)
    assert record.cache == "miss"
    result(made)


def test_a_folder_of_locks_that_others_can_write_is_not_used(isolated_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    locks = tmp_path / f"abele-locks-{os.getuid()}"
    locks.mkdir()
    locks.chmod(0o777)
    with isolated_cache.only_one("key", lambda: None) as waited:
        assert not waited
        assert os.listdir(locks) == []
    locks.chmod(0o700)
    old = locks / "old"
    old.write_text("")
    os.utime(old, (0, 0))
    with isolated_cache.only_one("key", lambda: None):
        assert len(os.listdir(locks)) == 1
        assert not old.exists()


def test_no_manifest_with_right_checksums_costs_more_than_a_rebuild(programs, isolated_cache):
    made, _ = built(programs, isolated_cache)
    path, expected, origins = isolated_cache.path(made.key), result(made), set()
    for name, put in itertools.islice(altered.manifests(path), 0, None, 2):
        put()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again, record = built(programs, ExecutableCache(isolated_cache.folder))
        said = [each.category for each in caught]
        assert said == ([] if record.cache == "hit" else [CacheWarning]), name
        assert torch.equal(result(again)[0], expected[0]), name
        origins.add(record.cache)
    assert origins == {"hit", "miss"}


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b"null", b"[1]", b'{"x": 1}'])
def test_a_plan_that_means_nothing_costs_one_warning(programs, isolated_cache, text):
    target = Keeping()
    target.lowerings[0].load_planned = lambda program, payload, plan: json.loads(plan)["wanted"]
    made, _ = built(programs, isolated_cache, target)
    path = isolated_cache.path(made.key)
    content = altered.members(path)
    manifest = json.loads(content["manifest.json"])
    manifest["members"]["plans/forward"] = {}
    content |= {"plans/forward": text, "manifest.json": json.dumps(manifest).encode()}
    altered.write(path, content)
    with pytest.warns(CacheWarning, match="could not be used and is rebuilt") as caught:
        _, record = built(programs, isolated_cache, target)
    assert (len(caught), record.cache) == (1, "miss")


def test_the_oldest_of_many_verdicts_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(verdict, "_MOST_RECORDED", 2)
    for age, machine in enumerate(("new", "old", "oldest")):
        given = verdict.Verdict(
            machine=machine, compared={}, errors={}, judged_by="tolerance", remedy=""
        )
        verdict.record(given)
        os.utime(tmp_path / "verdicts" / f"{machine}.json", (10 - age, 10 - age))
    verdict.record(dataclasses.replace(given, machine="newest"))
    assert {name for name in ("newest", "new", "old", "oldest") if verdict.recorded(name)} == {
        "newest",
        "new",
    }


def test_what_was_used_last_stays(programs, isolated_cache):
    first, _ = built(programs, isolated_cache)
    kept = isolated_cache.path(first.key)
    others = [isolated_cache.path(f"{number}") for number in range(3)]
    for age, path in enumerate(others):
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 - age, 1000 - age))
    os.utime(kept, (0, 0))
    assert built(programs, isolated_cache)[1].cache == "hit"  # which counts as a use
    folder = isolated_cache.folder
    files.prune(folder.glob("*.abele"), kept.stat().st_size + 250)
    assert [path.exists() for path in (kept, *others)] == [True, True, True, False]
    files.prune(folder.glob("*.abele"), 0)
    assert not list(folder.glob("*.abele"))
