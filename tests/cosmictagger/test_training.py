"""A physicist's night: runs that are stopped, killed, resumed, and given bad events."""

import json
import os
import re
import shutil
import signal
import threading

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cosmictagger import checkpoints
from cosmictagger.backends import StepResult
from cosmictagger.backends.plain import PlainBackend
from cosmictagger.modes import training
from cosmictagger.modes.stopping import Stop, Stopped
from cosmictagger.modes.training import Schedule
from cosmictagger.results import report
from helpers.cosmic_small import SIZE, column, event, record, write_events


def steps(folder, saver="train"):
    return [int(step) for step in column(folder, "step", saver)]


def test_a_run_leaves_what_the_original_leaves(run, real_pictures, monkeypatch, capfd):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "")
    monkeypatch.delenv("KINETO_LOG_LEVEL")  # which the run sets
    status, out = run(
        "run.iterations=3", "run.aux_iterations=2", "run.saver=True", "mode.checkpoint_iteration=2",
        "mode.no_summary_images=False", "run.profile=True",
    )  # fmt: skip
    assert status == 0
    assert capfd.readouterr().err == ""  # torch's profiler would say when it starts
    assert {path.name for path in out.iterdir()} == {
        "checkpoints", "curves.png", "process.log", "profiles", "run.json", "test",
        "test_metrics.csv", "train", "train_metrics.csv", "training.html",
    }  # fmt: skip
    assert sorted(os.listdir(out / "checkpoints")) == ["checkpoint", "model-2.ckpt", "model-3.ckpt"]
    header = (out / "train_metrics.csv").read_text().splitlines()[0].split(",")
    names = ("Total_Accuracy", "Cosmic_IoU", "Neutrino_IoU", "Non_Bkg_Accuracy", "mIoU")
    groups = ("Average", "plane0", "plane1", "plane2")
    assert header == ["step", "loss", *(f"{g}/{n}" for g in groups for n in names),
                      "global_step_per_sec", "images_per_second", "io_fetch_time",
                      "step_time", "learning_rate"]  # fmt: skip
    assert (steps(out), steps(out, "test")) == ([0, 1, 2], [2])
    rates = [float(rate) for rate in column(out, "learning_rate")]
    assert rates == pytest.approx([1e-4 + 2e-4 * 2 / 7 * step for step in range(3)], rel=1e-7)
    written = EventAccumulator(str(out / "train")).Reload()
    assert written.Scalars("learning_rate")[0].value == pytest.approx(1e-4)
    assert len(written.Scalars("Average/mIoU")) == 3
    assert set(written.Tags()["images"]) == {
        f"{what}/plane_{plane}" for what in ("prediction", "label") for plane in range(3)
    }
    profiles = sorted(os.listdir(out / "profiles"))
    assert profiles == [
        "args.json", "profiling_info_rank_0.npy", *(f"timeline_{i}.json" for i in range(3))
    ]  # fmt: skip
    times = np.load(out / "profiles" / profiles[1], allow_pickle=False)
    assert len(times) == 3
    parts = [times[part].astype(int) for part in ("forward", "loss", "backward", "optimizer")]
    assert min(part.min() for part in parts) > 0
    assert (sum(parts) <= times["train"].astype(int)).all()
    log = (out / "process.log").read_text()
    assert "Dumping launch arguments." in log
    assert "-- CONFIG --" in log
    assert re.search(r"train Step 2 metrics: loss: .* \(Step\)\(s\)\)", log)
    assert re.search(r"except first two iterations: [\d.]+, throughput: [\d.]+", log)


def test_a_page_is_written_at_every_checkpoint(run, monkeypatch):
    pages, made = [], report.page
    monkeypatch.setattr(report, "page", lambda content: made(pages.append(content) or content))
    _, out = run("run.iterations=5", "run.aux_iterations=2", "mode.checkpoint_iteration=2")
    assert [page.settings["after step"] for page in pages] == [2, 4, 5]
    assert [page.proof["training_steps"] for page in pages] == [2, 4, 5]
    steps = [page.curves["train"]["step"].tolist() for page in pages]
    assert steps == [list(range(2)), list(range(4)), list(range(5))]
    assert pages[-1].curves["test"]["step"].tolist() == [2, 4]
    text = (out / "training.html").read_text()
    assert text == made(pages[-1])
    for said in ("7 to train on, 3 to validate on", "validation batches", "checkpoints/", "focal"):
        assert said in text


def test_a_table_that_was_changed_costs_the_page_and_not_the_run(run):
    _, out = run("run.iterations=1")
    (out / "train_metrics.csv").write_text("when,loss\nnoon,1\n")
    page = (out / "training.html").read_bytes()
    assert run("run.iterations=1")[0] == 0
    assert (out / "training.html").read_bytes() == page
    log = (out / "process.log").read_text()
    assert re.search("WARNING - .*/training.html could not be written: ValueError.*noon", log)
    assert record(out)["ended"] == "finished"


def check_proof(out, mode, target):
    """Banner, log and record name the mode, its target and its program."""
    result = record(out)
    proof = result["proof"]
    assert (proof["mode"], proof["target"], proof["training_steps"]) == (mode, target, 5)
    steps = proof["training_steps"] + proof["evaluation_steps"]
    assert (proof["interpreted_steps"], proof["compiled_steps"]) == (steps, 0)  # see conftest
    log = (out / "process.log").read_text()
    # At the start; where something is compiled, once more after that; and at the end.
    assert log.count(f"Mode {mode}: ") == (3 if mode == "IPU" else 2)
    assert re.search(
        rf"Weights after step 5: {result['weights_hash']}\n.*Proof: Mode {mode}: .*; 5 training",
        log,
    )
    if mode == "IPU":
        assert proof["compile_seconds"] > 0
        assert "executable: at the first step" in log
        line = re.search(r"Mode IPU: poptorch, target reference, .* executable (\w{16}), made", log)
        assert line is not None
        assert proof["executable"].startswith(line[1])
    saved = torch.load(out / "checkpoints" / "model-5.ckpt", weights_only=True)
    assert checkpoints.weights_hash(saved["state_dict"]) == result["weights_hash"]
    assert (result["ended"], result["steps"], result["seeds"]["data"]) == ("finished", 5, 7)


def test_the_record_of_a_compiled_mode(run, plane_net):
    check_proof(run("run.iterations=5", "run.aux_iterations=0", "run.compute_mode=IPU")[1],
                "IPU", "reference")  # fmt: skip


def test_the_log_says_when_compiled_programs_take_over(run, plane_net, monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")
    monkeypatch.setenv("ABELE_START", "tiered")
    monkeypatch.setenv("ABELE_SWAP_AT", "2")
    seen = []
    noted = training.Training._note

    def note(self, *given):
        noted(self, *given)
        proof = record(self.launch.folder)["proof"]
        seen.append((proof["interpreted_steps"], proof["compiled_steps"]))

    monkeypatch.setattr(training.Training, "_note", note)
    mode = ("run.compute_mode=IPU", "run.executable_cache=false")
    _, out = run("run.iterations=4", "run.aux_iterations=0", *mode)
    assert seen == [(0, 0), (1, 0), (1, 0), (2, 1)]  # before each step, as known when that changed
    lines = re.findall(r" - Mode IPU: .*; (.*)", (out / "process.log").read_text())
    assert lines[0].startswith("executable: at the first step")
    assert lines[1].startswith("programs are interpreted until compiled ones are ready")
    assert lines[2:] == ["compiled programs run since update 2, interpreted before"]
    proof = record(out)["proof"]
    assert (proof["interpreted_steps"], proof["compiled_steps"]) == (2, 2)


def test_the_log_says_once_which_programs_validate(run, plane_net, monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")
    monkeypatch.setenv("ABELE_START", "tiered")
    monkeypatch.setenv("ABELE_SWAP_AT", "2")
    mode = ("run.compute_mode=IPU", "run.executable_cache=false")
    _, out = run("run.iterations=5", "run.aux_iterations=1", *mode)
    lines = re.findall(r" - Validation: (.*)", (out / "process.log").read_text())
    assert lines[0].startswith("programs are interpreted until compiled ones are ready")
    assert lines[1:] == ["compiled programs run since batch 2, interpreted before"]


def test_going_on_is_as_if_nothing_had_happened(run):
    """Batches, validation, rates, statistics, moments and weights: 5 steps, and 2 and 3.

    In test_proof_modes a process is really killed, in every mode.
    """
    whole = ("run.iterations=5", "run.aux_iterations=2")
    _, straight = run(*whole, "mode.checkpoint_iteration=2", name="straight")
    check_proof(straight, "CPU", "eager")
    # What a run leaves that is killed between steps 2 and 4.
    killed = straight.parent / "killed"
    (killed / "checkpoints").mkdir(parents=True)
    shutil.copy(straight / "checkpoints" / "model-2.ckpt", killed / "checkpoints")
    assert run("run.iterations=3", *whole[1:], name="killed")[0] == 0
    assert record(killed)["weights_hash"] == record(straight)["weights_hash"]
    assert column(killed, "loss") == column(straight, "loss")[2:]
    assert column(killed, "loss", "test") == column(straight, "loss", "test")
    assert "Going on after step 2" in (killed / "process.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step_with_a_checkpoint(run, monkeypatch, number):
    noted = training.Training._note

    def note(self, batch, result, rate):
        noted(self, batch, result, rate)
        if self.step == 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(training.Training, "_note", note)
    before = signal.getsignal(number)
    status, out = run("run.iterations=50", "run.aux_iterations=0")
    assert status == 128 + number
    assert steps(out) == [0, 1]
    assert checkpoints.load(checkpoints.locate(out))["global_step"] == 2
    assert record(out)["ended"] == f"stopped by signal {number}"
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["train", "inference"])
def test_a_signal_before_the_first_step_is_made_ends_at_once(run, monkeypatch, number, mode):
    """There is nothing to save, and a compiler may be at work for minutes."""

    def compiling(self, *_):
        os.kill(os.getpid(), number)
        pytest.fail("the step went on")

    method = "train_step" if mode == "train" else "evaluate_step"
    monkeypatch.setattr(PlainBackend, method, compiling)
    random = [f"mode={mode}", "mode.weights_location=random"] if mode == "inference" else []
    status, out = run("run.iterations=50", *random)
    assert status == 128 + number
    assert record(out)["ended"] == f"stopped by signal {number}"
    assert "after this step" not in (out / "process.log").read_text()
    assert not (out / "checkpoints").exists()


def test_a_second_signal_ends_at_once(monkeypatch):
    """By an exception, so that nothing half-written stays; a third one ends the process."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop.signal, sent) == (signal.SIGTERM, [])
        with pytest.raises(Stopped, match="stopped by SIGINT"):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert sent == [(os.getpid(), signal.SIGTERM)]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_may_train():
    """Signals belong to the main thread; elsewhere a run goes without them."""
    ended = []

    def work():
        with Stop() as stop:
            ended.append(stop.signal)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [None]


def test_a_step_that_bypasses_the_backend_is_an_error(run, monkeypatch, capsys):
    """A trainer that computes losses on the host by itself is found out at its first step."""

    def elsewhere(self, batch, rate):
        logits = self.network(batch.image)
        return StepResult(self.loss(logits, batch.label).detach(), logits)

    monkeypatch.setattr(PlainBackend, "train_step", elsewhere)
    status, out = run("run.iterations=2")
    assert status == 1
    assert "1 training steps were made, but 0 went through the backend" in capsys.readouterr().err
    assert not (out / "checkpoints").exists()


def test_a_loss_that_is_no_number_names_event_and_step(run, monkeypatch, capsys):
    step = PlainBackend.train_step

    def broken(self, batch, rate):
        result = step(self, batch, rate)
        if self.training_steps == 4:
            result.logits[1][1, 2, 3, 4] = torch.nan
            return StepResult(torch.tensor(torch.nan), result.logits)
        return result

    monkeypatch.setattr(PlainBackend, "train_step", broken)
    status, out = run("run.iterations=9", "run.aux_iterations=0", "mode.checkpoint_iteration=2")
    said = capsys.readouterr().err
    assert status == 1
    assert re.search(
        r"The loss of step 3 is nan. The first event of it is (\d+) \(run, subrun, event "
        r"\(1, 0, \1\)\)",
        said,
    )
    assert "the checkpoint after step 2" in said
    assert checkpoints.load(checkpoints.locate(out))["global_step"] == 2
    assert steps(out) == [0, 1, 2]


def test_a_bad_image_names_event_and_step_and_saves_first(run, tmp_path, capsys):
    events = [event(number) for number in range(6)]
    events[4].planes["sbndwire"][1].values[7] = np.inf
    write_events(tmp_path / "bad.h5", events, SIZE)
    status, out = run(
        f"data.data_directory={tmp_path}", "data.file=bad.h5", "data.aux_file=", "run.iterations=9"
    )
    said = capsys.readouterr().err
    assert status == 1
    stopped = re.search(r"Training stops at step (\d): .*bad.h5: event 4, plane 1.* inf", said)
    assert stopped is not None
    done = int(stopped[1])
    if done:
        assert checkpoints.load(checkpoints.locate(out))["global_step"] == done


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (("data.label=",), "training needs labels"),
        (("run.minibatch_size=8",), "8 events .* the file has 7"),
    ],
)
def test_bad_input_is_one_clear_sentence(run, capsys, overrides, match):
    status, _ = run("run.iterations=1", *overrides)
    said = capsys.readouterr().err.strip()
    assert status == 2
    assert re.search(f"cosmictagger: .*{match}", said)
    assert "Traceback" not in said


def test_a_checkpoint_cut_in_half_is_never_replaced_by_random_weights(run, capsys):
    _, out = run("run.iterations=4", "run.aux_iterations=0", "mode.checkpoint_iteration=2")
    cut = out / "checkpoints" / "model-4.ckpt"
    cut.write_bytes(cut.read_bytes()[:1000])
    status, _ = run("run.iterations=1")
    assert status == 1
    older = out / "checkpoints" / "model-2.ckpt"
    assert f"choose it with mode.weights_location={older}" in capsys.readouterr().err
    assert run("run.iterations=1", f"mode.weights_location={older}")[0] == 0
    assert checkpoints.load(checkpoints.locate(out))["global_step"] == 3


def test_weights_of_another_network_are_refused(run, capsys):
    run("run.iterations=1")
    assert run("run.iterations=1", "network.n_initial_filters=4")[0] == 1
    said = capsys.readouterr().err
    assert re.search(
        r"model-1.ckpt is of another network: of \d+ tensors, \d+ of other shape", said
    )


def test_going_on_with_other_data_has_to_be_asked_for(run, capsys, tmp_path):
    _, out = run("run.iterations=2")
    write_events(tmp_path / "more.h5", map(event, range(9)), SIZE)
    other = (f"data.data_directory={tmp_path}", "data.file=more.h5", "data.aux_file=")
    assert run("run.iterations=1", *other)[0] == 1
    assert "stored position of the loader is for events=7, here it is 9" in capsys.readouterr().err
    status, new = run("run.iterations=1", *other, f"mode.weights_location={out}", name="new")
    assert status == 0
    assert "loader starts at its first batch" in (new / "process.log").read_text()


def test_going_on_with_another_optimizer_has_to_be_asked_for(run, capsys):
    _, out = run("run.iterations=2")
    sgd = ("run.iterations=1", "mode.optimizer.name=sgd")
    assert run(*sgd)[0] == 1
    said = "trained with adam, this run asks for mode.optimizer.name=sgd. Use the same, or name"
    assert said in capsys.readouterr().err
    status, new = run(*sgd, f"mode.weights_location={out}", name="new")
    assert status == 0
    assert (
        f"The optimizer begins anew. The checkpoint was {said}" in (new / "process.log").read_text()
    )
    saved = checkpoints.load(checkpoints.locate(new))
    assert (saved["global_step"], list(saved["optimizer"])) == (3, ["sgd"])
    assert run(*sgd, name="new")[0] == 0


def test_validation_keeps_no_graph_and_changes_no_weights(run, monkeypatch):
    seen = []
    evaluate = PlainBackend.evaluate_step

    def watched(self, batch):
        result = evaluate(self, batch)
        seen.append(any(plane.requires_grad for plane in result.logits))
        return result

    monkeypatch.setattr(PlainBackend, "evaluate_step", watched)
    _, with_aux = run("run.iterations=4", "run.aux_iterations=1", name="with")
    assert seen == [False] * 3
    _, without = run("run.iterations=4", "run.aux_iterations=0", name="without")
    assert record(with_aux)["weights_hash"] == record(without)["weights_hash"]


class TestOtherModes:
    def test_inference_is_one_pass_in_order(self, run, capsys):
        run("run.iterations=2")
        status, out = run("mode=inference", "mode.displays=1")
        assert status == 0
        assert "Inference report: 4 batches processed for 7 entries." in capsys.readouterr().out
        result = record(out)
        assert (result["events"], result["proof"]["evaluation_steps"]) == (7, 4)
        assert result["metrics"]["Average/Total_Accuracy"] > 0
        assert result["weights_hash"] == checkpoints.weights_hash(
            checkpoints.load(checkpoints.locate(out))["state_dict"]
        )
        assert (out / "predictions.h5").exists()
        page = (out / "report.html").read_text()
        for said in ("small, 555 parameters", "train.h5", "after step 2, from"):
            assert said in page
        assert steps(out, "ana") == [0, 1, 2, 3]

    @pytest.mark.long
    def test_the_page_of_a_pass_links_those_of_the_programs(self, run):
        run("run.iterations=2", "run.compute_mode=IPU")
        status, out = run("mode=inference", "mode.displays=0", "run.compute_mode=IPU")
        assert status == 0
        page = (out / "report.html").read_text()
        for name in ("training", "inference"):
            assert f'href="compute/{name}/report.html"' in page
            of_program = (out / "compute" / name / "report.html").read_text()
            assert "What ran where" in of_program
            assert "between them, " not in of_program  # nobody asked for a profile

    @pytest.mark.parametrize(
        ("overrides", "events"),
        [(("run.iterations=2",), 4), (("mode.start_index=3",), 4), (("mode.start_index=6",), 1)],
    )
    def test_part_of_a_file(self, run, overrides, events):
        random = ("mode.weights_location=random", "mode.displays=0")
        _, out = run("mode=inference", *random, *overrides)
        assert record(out)["events"] == events

    def test_random_weights_have_to_be_asked_for(self, run, capsys):
        status, out = run("mode=inference")
        assert status == 2
        assert "mode.weights_location=random" in capsys.readouterr().err
        assert "Network " not in (out / "process.log").read_text()

    def test_an_event_that_is_not_there(self, run, capsys):
        assert run("mode=inference", "mode.weights_location=random", "mode.start_index=7")[0] == 2
        assert "mode.start_index=7 was asked for, but there are 7 events" in capsys.readouterr().err

    def test_without_labels(self, run, tmp_path):
        images = [
            event(n)._replace(planes={"sbndwire": event(n).planes["sbndwire"]}) for n in (1, 2)
        ]
        write_events(tmp_path / "bare.h5", images, SIZE, producers=("sbndwire",))
        status, out = run(
            "mode=inference", "mode.weights_location=random", f"data.data_directory={tmp_path}",
            "data.file=bare.h5", "data.label=", "mode.displays=1",
        )  # fmt: skip
        assert status == 0
        assert record(out)["metrics"] == {}
        assert (out / "predictions.h5").exists()

    def test_scores_that_are_no_numbers(self, run, monkeypatch, capsys):
        def broken(self, batch):
            logits = tuple(torch.zeros(len(batch), 3, 32, 64) for _ in range(3))
            logits[2][0, 0, 0, 0] = torch.inf
            self.evaluation_steps += 1
            return StepResult(torch.tensor(1.0), logits)

        monkeypatch.setattr(PlainBackend, "evaluate_step", broken)
        assert run("mode=inference", "mode.weights_location=random")[0] == 1
        said = capsys.readouterr().err
        assert "Scores of event 0 (run, subrun, event (1, 0, 0)) are no numbers" in said

    def test_iotest_reads_and_says_how_fast(self, run, capsys):
        status, out = run("mode=iotest", "run.iterations=5")
        assert status == 0
        said = capsys.readouterr().out
        assert re.search(r"4: Time to fetch a minibatch of data: \d+\.\d\ds", said)
        assert re.search(r"Average Image IO Throughput: \d", said)
        assert record(out)["images"] == 2 + 2 + 2 + 1 + 2


def test_synthetic_data_train_too(run):
    status, out = run("data=synthetic", "data.downsample=6", "run.iterations=1", "network.depth=1")
    assert status == 0
    assert "data" in json.dumps(record(out)["config"])


def test_seeds_that_were_drawn_repeat_a_run(run):
    _, first = run("data.seed=0", "framework.seed=0", "run.iterations=1", name="first")
    seeds = record(first)["seeds"]
    again = (f"data.seed={seeds['data']}", f"framework.seed={seeds['framework']}")
    _, second = run(*again, "run.iterations=1", name="second")
    assert record(second)["weights_hash"] == record(first)["weights_hash"]
    assert f"data.seed={seeds['data']} was drawn" in (first / "process.log").read_text()


# The learning rate, against numbers of the original.
_PUBLISHED = {
    0: 1.00000e-4,
    1: 1.00074e-4,
    1000: 1.74289e-4,
    2692: 2.99986e-4,
    2693: 3.0e-4,
    56535: 3.0e-4,
    56536: 2.99995e-4,
    60000: 1.55307e-4,
    67304: 1.03679e-4,
    80000: 1.00033e-4,
}


@pytest.mark.parametrize("step", _PUBLISHED)
def test_published_learning_rates(step):
    schedule = Schedule(peak=3e-4, images_per_step=16, events=43075)
    assert schedule(step) == pytest.approx(_PUBLISHED[step], rel=4e-6)


def test_accumulated_images_count_as_seen():
    assert Schedule(3e-4, 4, 100).epoch(50) == 2 * Schedule(3e-4, 2, 100).epoch(50)


def test_peak_below_the_lowest_falls_to_it_and_never_leaves_the_two():
    schedule = Schedule(peak=5e-5, images_per_step=1, events=10)
    assert all(5e-5 <= schedule(step) <= 1e-4 for step in range(500))
