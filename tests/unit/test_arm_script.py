"""`scripts/arm` without an emulator: what it refuses, what it runs, and what decides its status."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM = r"""#!/bin/sh
mkdir -p "$1/bin" "$1/tools/bin"
cat >"$1/bin/python" <<'END'
#!/bin/sh
echo "$QEMU_CPU $PATH $*" >>"{folder}/calls"
case "$*" in
*random_programs*) exit {programs} ;;
*readme.py) echo "loss 10.60 -> 0.0020 on target cpu" ;;
esac
END
printf '#!/bin/sh\nexit {wheel}\n' >"$1/tools/bin/python"
chmod +x "$1/bin/python" "$1/tools/bin/python"
exit {made}
"""


@pytest.fixture
def folder(tmp_path):
    """A copy of the script, whose system is a stand-in, beside an emulator and a compiler."""
    for name in ("scripts", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "scripts" / "arm", tmp_path / "scripts")
    shutil.copy(ROOT / "README.md", tmp_path)
    for name in ("qemu-aarch64", "aarch64-linux-gnu-g++", "apt-get"):
        program(tmp_path / "bin" / name, "#!/bin/sh\nexit 1\n")
    stand_in(tmp_path)
    return tmp_path


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def stand_in(folder, *, programs=0, wheel=0, made=0):
    text = SYSTEM.replace("{folder}", str(folder)).replace("{programs}", str(programs))
    text = text.replace("{wheel}", str(wheel)).replace("{made}", str(made))
    program(folder / "scripts" / "arm_system", text)


def run(folder, *arguments):
    return subprocess.run(
        [folder / "scripts" / "arm", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "scripts/arm FOLDER readme kernels"),
        ([], 2, "scripts/arm FOLDER"),
        (["out", "readme", "kernel"], 2, "scripts/arm has no stage kernel, but readme kernels"),
    ],
)
def test_it_says_how_it_is_used(folder, arguments, status, said):
    done = run(folder, *arguments)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "\nset -eu" not in done.stdout + done.stderr
    assert not (folder / "calls").exists()


def test_every_stage_runs_on_its_processor_with_the_compiler_of_the_system_alone(folder):
    done = run(folder, folder / "out")
    assert done.returncode == 0, done.stderr
    lines = (folder / "out" / "summary.txt").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if "status" in line] == [
        f"{name}: status 0"
        for name in (
            *("setup", "readme", "kernels", "ladder", "programs", "choices", "readme-sve"),
            *("programs-sve", "wheel-build", "wheel", "wheel-no-kernel-compiled"),
            "wheel-without-compiler",
        )
    ]
    assert lines[-1] == "wheel-without-compiler: loss 10.60 -> 0.0020 on target cpu"
    calls = [line.split(" ", 2) for line in (folder / "calls").read_text().splitlines()]
    assert len(calls) == 9
    assert {path for _, path, _ in calls} == {str(folder / "out/bin"), "/nowhere"}
    with_sve = [command for processor, _, command in calls if processor.startswith("max,sve")]
    assert len(with_sve) == 2
    assert with_sve[0].endswith("readme.py")
    assert with_sve[1].endswith("--programs 10")
    program_text = (folder / "out" / "readme.py").read_text()
    assert program_text.startswith("import poptorch\n")
    compile(program_text, "readme.py", "exec")


@pytest.mark.parametrize("fault", ["programs", "wheel"])
def test_a_stage_that_fails_decides_the_status(folder, fault):
    stand_in(folder, **{fault: 1})
    done = run(folder, folder / "out", "programs", "wheel")
    assert done.returncode == 1
    name = {"programs": "programs", "wheel": "wheel-build"}[fault]
    assert f"{name}: status 1, " in done.stdout
    assert ("wheel-without-compiler" in done.stdout) is (fault == "programs")


def test_kernels_compiled_in_spite_of_the_wheel_are_a_failure(folder):
    text = (folder / "scripts" / "arm_system").read_text()
    kernels = '/bin/mkdir -p "$HOME/.cache/abele/abele_shared_1.objects"; echo'
    program(
        folder / "scripts" / "arm_system", text.replace("readme.py) echo", f"readme.py) {kernels}")
    )
    done = run(folder, folder / "out", "wheel")
    assert done.returncode == 1
    assert "wheel-no-kernel-compiled: status 1, " in done.stdout


def test_without_a_system_nothing_runs(folder):
    stand_in(folder, made=1)
    done = run(folder, folder / "out")
    assert done.returncode == 3
    assert "no ARM system could be made" in done.stderr
    assert not (folder / "calls").exists()


def test_without_an_emulator_it_says_what_to_install(folder):
    for name in ("qemu-aarch64", "aarch64-linux-gnu-g++"):
        (folder / "bin" / name).unlink()
    for name in ("sh", "sed", "dirname", "id", "env"):
        (folder / "bin" / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [folder / "scripts" / "arm", folder / "out"],
        capture_output=True,
        text=True,
        env={"PATH": str(folder / "bin")},
        check=False,
    )
    assert done.returncode == 3
    said = "apt-get install qemu-user g++-aarch64-linux-gnu; nothing was run."
    assert said in done.stderr
