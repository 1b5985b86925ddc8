"""The user's code that runs during a call is found, with the objects that it names."""

import datetime
import gc
import os
import sys
import threading
import time
import types
from time import perf_counter

import pytest
import torch

from abele import cpython
from abele.functions.frames import Frames, attribute, global_names

NUMBER = 3


def frames_of(function, *arguments):
    frames = Frames(getattr(function, "__code__", None))
    with frames.watching():
        function(*arguments)
    return list(frames)


def inner(value):
    return value * NUMBER


def outer(model, x):
    return inner(model(x).scale) + model.offset


class Model:
    offset = 1

    def __call__(self, x):
        return types.SimpleNamespace(scale=getattr(self, "factor", 2))


def test_functions_of_the_user_are_found_with_their_objects():
    model = Model()
    found = {each.code.co_name: each for each in frames_of(outer, model, torch.ones(1))}
    assert set(found) == {"outer", "__call__", "inner"}
    assert found["outer"].values == {"model": model}  # no tensors, no numbers
    assert dict(found["inner"].roots()) == {"NUMBER": 3}
    assert found["outer"].attributes == {"scale", "offset"}
    assert "factor" in found["__call__"].attributes


def test_code_of_libraries_is_not_the_users():
    layer = torch.nn.Linear(1, 1)
    assert frames_of(layer, torch.ones(1)) == []
    assert frames_of(lambda: os.path.join("a", "b"))[0].code.co_name == "<lambda>"
    assert [each.code for each in frames_of(os.path.join, "a", "b")] == [os.path.join.__code__]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_python_are_libraries(tmp_path, monkeypatch, folder):
    path = tmp_path / folder / "tqdm" / "bars.py"
    path.parent.mkdir(parents=True)
    path.write_text("def own(): return 2\ndef bar(): return own()")
    monkeypatch.syspath_prepend(path.parent)
    import bars

    assert [each.code.co_name for each in frames_of(bars.bar)] == ["bar"]  # what is watched
    monkeypatch.delitem(sys.modules, "bars")


def test_code_that_an_import_runs_is_not_the_users(tmp_path, monkeypatch):
    (tmp_path / "imported_when_needed.py").write_text("def f(): return 1\nNUMBER = f()")
    monkeypatch.syspath_prepend(tmp_path)

    def imports():
        import imported_when_needed

        return imported_when_needed.f()

    assert [each.code.co_name for each in frames_of(imports)] == ["imports", "f"]


def test_a_debuggers_trace_function_is_put_back():
    before, events = sys.gettrace(), []

    def tracer(frame, event, arg):
        events.append(frame.f_code.co_name)

    sys.settrace(tracer)
    try:
        with Frames(None).watching(), cpython.unwatched():
            pass
        inner(1)
        sys.settrace(before)
        with Frames(None).watching():
            sys.settrace(tracer)  # as breakpoint() does
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert "inner" in events


@pytest.fixture(params=[(), (3,), range(6)], ids=["no tool", "one tool", "all tools"])
def tools(request):
    """Other tools of ``sys.monitoring``, each with the functions that it sees start."""
    monitoring, seen = getattr(sys, "monitoring", None), {each: [] for each in request.param}
    if seen and monitoring is None:
        pytest.skip("Python 3.11 has no tools")
    for number, names in seen.items():
        monitoring.use_tool_id(number, f"tool {number}")
        monitoring.register_callback(
            number, monitoring.events.PY_START, lambda code, _, to=names: to.append(code.co_name)
        )
        monitoring.set_events(number, monitoring.events.PY_START)
    yield seen
    if monitoring is not None:
        users = [monitoring.get_tool(each) for each in range(6)]
        assert users == [f"tool {each}" if each in seen else None for each in range(6)]
    for number in seen:
        assert monitoring.get_events(number) == monitoring.events.PY_START
        monitoring.set_events(number, 0)
        monitoring.register_callback(number, monitoring.events.PY_START, None)
        monitoring.free_tool_id(number)


def test_frames_are_seen_beside_any_tools(tools):
    def items():
        yield inner(1)
        raise ValueError("stopped")

    for _ in range(2):  # the second one gets the number that the first one has freed
        frames = Frames(None)
        with pytest.raises(ValueError, match="stopped"), frames.watching():
            list(items())
        assert {each.code.co_name for each in frames} == {"items", "inner"}
    for names in tools.values():
        assert names.count("inner") == 2


def test_code_that_one_thread_ignores_is_seen_by_another(tools):
    ignoring, watching = Frames(None), Frames(os.path.join.__code__)
    begun, over = threading.Event(), threading.Event()

    def ignore():
        with ignoring.watching():
            os.path.join("a", "b")
            begun.set()
            over.wait()

    with watching.watching():
        thread = threading.Thread(target=ignore)
        thread.start()
        begun.wait()
        os.path.join("a", "b")
        over.set()
        thread.join()
    assert os.path.join.__code__ in [each.code for each in watching]
    assert os.path.join.__code__ not in [each.code for each in ignoring]


def test_calls_outside_of_the_block_and_of_other_threads_are_not_seen():
    around, inside = Frames(None), Frames(None)
    inner(1)
    with around.watching():
        with inside.watching():
            inner(1)
        thread = threading.Thread(target=frames_of, args=(inner, 1))
        thread.start()
        thread.join()
        with cpython.unwatched():
            len("")
        Model()(torch.ones(1))
    inner(1)
    assert [each.code.co_name for each in inside] == ["inner"]
    assert [each.code.co_name for each in around] == ["__call__"]


def test_globals_that_hold_data_are_named():
    names = [name for _, name, _ in global_names(frames_of(outer, Model(), torch.ones(1)))]
    assert names == ["NUMBER"]


CLOCKS = {
    "time.time": lambda: time.time(),
    "perf_counter": lambda: perf_counter(),
    "now": lambda: datetime.datetime.now(),
    "environ": lambda: os.environ.get("PATH"),
    "getenv": lambda: os.getenv("PATH"),
}


@pytest.mark.parametrize("read", CLOCKS.values(), ids=CLOCKS)
def test_clocks_and_the_environment_are_seen(read):
    (frame,) = frames_of(read)
    assert frame.reads_clock()


@pytest.mark.parametrize(
    "read", [lambda: os.path.sep, lambda: datetime.timedelta(1), lambda: time.struct_time]
)
def test_other_names_of_the_same_modules_are_none(read):
    (frame,) = frames_of(read)
    assert not frame.reads_clock()


def test_an_attribute_is_found_where_it_is_kept():
    class Base:
        size = 1

    class Derived(Base):
        scale = 2

    class Slotted:
        __slots__ = ("depth", "width")

    made, slotted = Derived(), Slotted()
    made.count, slotted.depth = 3, 4
    module = types.ModuleType("module")
    module.name = "a"
    assert attribute(made, "count") == (vars(made), 3)
    assert attribute(made, "scale") == (Derived, 2)
    assert attribute(made, "size") == attribute(Derived, "size") == (Base, 1)
    assert attribute(slotted, "depth") == (slotted, 4)
    assert attribute(slotted, "width") is None
    assert attribute(module, "name") == (vars(module), "a")
    assert attribute(made, "missing") is None
    assert attribute(module, "missing") is None


def test_callbacks_of_the_garbage_collector_are_not_the_users():
    def callback(phase, info):
        called.append(phase)

    called = []
    gc.callbacks.append(callback)
    try:
        found = frames_of(lambda: gc.collect())
    finally:
        gc.callbacks.remove(callback)
    assert called
    assert callback.__code__ not in [each.code for each in found]
