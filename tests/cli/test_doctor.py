"""The doctor: finds what is wrong, says what mends it, and never fails by itself."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_lab.cli import doctor, main as cli
from parallel_lab.cli.doctor import Finding, examine, meets, report_json, requirements
from parallel_lab.processes.mpi.launch import find_mpirun, rank_environment
from tests.crossed import each_of

ROOT = Path(__file__).resolve().parents[2]


def one(check):
    return Finding("checked", *check())


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [name for name in doctor.CHECKS if name != "page"])  # that one is for browsers
def test_a_check_gives_well_formed_findings_and_the_machine_that_runs_the_tests_is_found_fit(name):
    (finding,) = examine({name: doctor.CHECKS[name]})
    assert finding.name == name and finding.status in ("ok", "warning", "problem")
    assert bool(finding.mend) == (finding.status != "ok"), finding
    assert "the check itself failed" not in finding.found
    if name in ("python", "packages", "numpy", "jupyter", "workers"):
        assert finding.status == "ok", finding.text()


@pytest.mark.quick(1)
@pytest.mark.parametrize("package", ["multiprocess", "dill", "safetensors", "mpi4py"])
def test_a_missing_package_does_not_keep_the_doctor_from_coming(package):
    """The command once imported the launchers, and so multiprocess, before it knew which subcommand was meant."""
    code = (
        f"import sys; sys.modules[{package!r}] = None; from parallel_lab.cli import main as cli; "
        "cli._parser().parse_args(['doctor']); import parallel_lab.cli.doctor"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


def test_an_old_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 4))
    assert one(doctor.check_python).status == "problem"


@pytest.mark.parametrize(("cores", "status"), [({0}, "warning"), ({0, 1}, "ok"), (set(range(8)), "ok")])
def test_one_core_is_a_warning(monkeypatch, cores, status):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: cores, raising=False)
    monkeypatch.setattr(doctor, "_cgroup_number", lambda name: None)
    assert one(doctor.check_cores).status == status


def test_the_containers_share_of_time_counts(monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(doctor, "_cgroup_number", lambda name: {"cpu.max": "150000"}.get(name))
    finding = one(doctor.check_cores)
    assert (finding.status, "time of 1.5" in finding.found) == ("warning", True)


@each_of(("free_mib", "status"), (100, "problem"), (511, "problem"), (1024, "warning"), (2048, "ok"), (None, "warning"))
def test_little_memory_is_reported(monkeypatch, free_mib, status):
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda: None if free_mib is None else free_mib << 20)
    assert one(doctor.check_memory).status == status


def test_the_containers_memory_limit_counts(monkeypatch):
    limits = {"memory.max": str(900 << 20), "memory.current": str(800 << 20)}
    monkeypatch.setattr(doctor, "_cgroup_number", limits.get)
    assert doctor.available_memory_bytes() == 100 << 20


def test_a_refused_memfd_is_a_problem_only_where_no_file_serves(monkeypatch):
    def refused(*_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor.os, "memfd_create", refused, raising=False)
    assert one(doctor.check_shared).status == "ok"
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    finding = one(doctor.check_shared)
    assert (finding.status, "Operation not permitted" in finding.found) == ("problem", True)


def test_the_trial_of_shared_memory_leaves_no_descriptor_open():
    before = os.listdir("/proc/self/fd")
    doctor.check_shared()
    assert os.listdir("/proc/self/fd") == before


def test_missing_and_old_packages_are_named_with_one_command(monkeypatch):
    versions = {"numpy": "1.26.4", "plotly": "7.0"}

    def version(name):
        if name in versions:
            return versions[name]
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requirements", lambda: ("numpy>=2.0", "plotly>=6.1", "anywidget>=0.9.18"))
    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    finding = one(doctor.check_packages)
    assert finding.status == "problem"
    assert finding.found == "numpy is 1.26.4, but 2.0 or newer is needed; anywidget is missing"
    assert finding.mend == f'{sys.executable} -m pip install "numpy>=2.0" "anywidget>=0.9.18"'


def test_requirements_are_those_of_the_project_file():
    text = (ROOT / "pyproject.toml").read_text()
    assert requirements()
    assert [line for line in requirements() if f'"{line}' not in text] == []


@each_of(
    ("version", "limit", "expected"),
    ("2.10", "2.9", True),  # numbers, not text
    ("2.0", "2", True),
    ("2", "2.0.0", True),
    ("2.0.0rc1", "2.0", True),
    ("1.99.9", "2", False),
    ("0.9", "0.9.18", False),
    ("4.5.6", "4.5.7", False),
)
def test_versions_are_compared_as_numbers(version, limit, expected):
    assert meets(version, limit) is expected


def test_missing_lessons_are_a_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "shipped_folder", lambda name: tmp_path)
    finding = one(doctor.check_lessons)
    assert (finding.status, "no notebook" in finding.found) == ("problem", True)


@pytest.mark.exhaustive
@pytest.mark.faults("poor machines", cases=1)
def test_workers_that_hang_are_ended_with_all_their_processes(monkeypatch):
    monkeypatch.setattr(doctor, "_WORKERS_LIMIT_S", 1.0)
    sleep = "import time; time.sleep(600)"
    hang = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
    real = doctor._python
    monkeypatch.setattr(doctor, "_python", lambda code, limit_s: real(hang, limit_s))
    finding = one(doctor.check_workers)
    assert (finding.status, finding.found) == ("problem", "no answer within 1 s")


def test_workers_that_cannot_start_are_a_problem_with_the_reason(monkeypatch):
    real = doctor._python
    failing = "raise OSError('Resource temporarily unavailable')"
    monkeypatch.setattr(doctor, "_python", lambda code, limit_s: real(failing, limit_s))
    finding = one(doctor.check_workers)
    assert (finding.status, "Resource temporarily unavailable" in finding.found) == ("problem", True)


@each_of(
    ("check", "finder"),
    (doctor.check_browser, "shutil.which"),
    (doctor.check_mpi, "shutil.which"),
    (doctor.check_mpi, "importlib.util.find_spec"),
)
def test_a_missing_browser_or_mpi_is_only_a_warning(monkeypatch, check, finder):
    monkeypatch.delenv("PARALLEL_LAB_CHROMIUM", raising=False)
    monkeypatch.setattr(f"parallel_lab.cli.doctor.{finder}", lambda name, **how: None)
    assert one(check).status == "warning"


@each_of(
    ("finished", "told"),
    ((1, ["----", "There are not enough slots available"]), "There are not enough slots available"),
    ((None, []), "no answer"),
    ((0, []), "exit code 0"),
    ids=["refused", "hangs", "says nothing"],
)
def test_an_mpirun_that_cannot_run_is_a_warning_with_what_it_said(monkeypatch, finished, told):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **how: f"/bin/{name}")
    monkeypatch.setattr(doctor, "_finish", lambda command, limit_s, environment: finished)
    finding = one(doctor.check_mpi)
    assert (finding.status, told in finding.found) == ("warning", True), finding
    assert "openmpi-bin" in finding.mend


@pytest.mark.exhaustive
@pytest.mark.skipif(not (find_mpirun() and importlib.util.find_spec("mpi4py")), reason="mpirun or mpi4py not found")
def test_mpi_is_tried_and_the_line_for_this_machine_runs(tmp_path):
    finding = one(doctor.check_mpi)
    assert finding.status == "ok", finding.text()
    line = finding.found.partition("Run a script: ")[2]
    assert line.startswith("mpirun ") and line.endswith(" -n 8 python script.py"), finding.found
    (tmp_path / "script.py").write_text("print('a rank')\n")
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]
    found = subprocess.run(words, cwd=tmp_path, env=rank_environment(), capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout.count("a rank")) == (0, 8), found.stderr


def broken_check():
    raise ZeroDivisionError("a defect of ours")


def test_a_check_that_fails_by_itself_does_not_end_the_examination():
    findings = list(examine({"broken": broken_check, "python": doctor.check_python}))
    assert [finding.name for finding in findings] == ["broken", "python"]
    assert findings[0].status == "problem"
    assert "ZeroDivisionError: a defect of ours" in findings[0].found


GOOD, WARNING, PROBLEM = (
    Finding("a", "ok", "fine"),
    Finding("b", "warning", "slow", "wait"),
    Finding("c", "problem", "gone", "fetch it"),
)


@pytest.mark.parametrize(("findings", "code"), [([GOOD], 0), ([GOOD, WARNING], 0), ([GOOD, PROBLEM, WARNING], 1)])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_only_a_problem_makes_exit_code_1(monkeypatch, capsys, findings, code, form):
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    assert cli.main(["doctor", *form]) == code
    found = capsys.readouterr().out
    if form:
        assert json.loads(found)["usable"] is (code == 0)
    else:
        assert ("will not run" in found) == (code == 1)
        assert [finding.found for finding in findings if finding.found not in found] == []
        assert [finding.mend for finding in findings if finding.mend not in found] == []


def test_json_holds_every_field():
    finding = {"name": "c", "status": "problem", "found": "gone", "mend": "fetch it"}
    assert json.loads(report_json([PROBLEM])) == {"usable": False, "findings": [finding]}


@pytest.mark.exhaustive
def test_the_command_gives_json_and_nothing_else():
    command = [sys.executable, "-m", "parallel_lab", "doctor", "--json"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    told = json.loads(found.stdout)
    assert found.returncode == (0 if told["usable"] else 1)
    assert set(doctor.CHECKS) - {"/dev/shm", "page"} <= {item["name"] for item in told["findings"]}
