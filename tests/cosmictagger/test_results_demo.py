"""The demo goes from no events to a report, with everything that the guide promises."""

import cosmictagger_demo


def test_from_nothing_to_a_report(tmp_path, capsys, real_pictures):
    out = tmp_path / "demo"
    small = ["--mode", "CPU", "--events", "4", "--unseen", "2", "--steps", "2", "--out", str(out)]
    assert cosmictagger_demo.main(small) == 0
    said = capsys.readouterr().out
    log = (out / "process.log").read_text()
    for second in ("Running Training", "Running Inference"):
        assert second in said  # the second run of a process writes to terminal and file as well
        assert second in log
    lines = said.splitlines()
    start = lines.index("entry | neutrino | mIoU  | cosmic | neutrino")
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[start + 1 : start + 3]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(float(row[1]) > 0 and 0 <= float(row[2]) <= 1 for row in rows)
    for promised in (
        "run.json",
        "process.log",
        "train_metrics.csv",
        "ana_metrics.csv",
        "checkpoints/model-2.ckpt",
        "predictions.h5",
        "event_metrics.csv",
        "displays/entry_000001.png",
        "curves.png",
    ):
        assert (out / promised).stat().st_size
    page = (out / "report.html").read_text()
    assert "2 events, mean IoU" in page
    assert page.count("data:image/png;base64,") == 3


def test_an_error_of_the_application_is_the_status_of_the_demo(tmp_path, capsys):
    assert cosmictagger_demo.main(["--mode", "CPU", "--events", "0", "--out", str(tmp_path)]) == 2
    assert "data.events=0" in capsys.readouterr().err
