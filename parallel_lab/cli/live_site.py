"""`parallel-lab site --live OUT`: the lessons in any browser, where they run and nothing is installed.

A static folder for any web server: JupyterLite with its Pyodide kernel, the lessons, this package as a wheel and the
pure wheels that it needs. numpy and Python itself come from Pyodide: from their usual address, or, with `--pyodide
FOLDER`, from a folder (a full distribution for a school without a network), into which nothing is written.

    index.html                the lessons, and how much is downloaded when one opens
    lab/                      JupyterLite, with the extensions that show widgets
    static/pyodide/           Python as WebAssembly, wheels, and pyodide-lock.json

The lock says which package is imported by which name, and where its file is. What the kernel and this package need is
added to it, so `import parallel_lab` in a cell fetches all of it; packages that are not needed are taken out. Files of
PyPI come from there; those that only Pyodide builds (numpy, MarkupSafe) must be in the folder, and a line says which
are missing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..base.errors import DataFileError, MissingPackage, escape
from ..base.files import checkout_folder, shipped_folder, version
from ..base.plain_json import read_json
from ..base.units import bytes_text
from ..lab.shared.replay import Limits
from ..lab.widgets import LABS

MARK = "<!-- a live site of parallel-lab -->"  # in the index: such a folder may be replaced
CORE = ("pyodide.mjs", "pyodide.js", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
# an ordinary JupyterLab reports in its console that JupyterLite's extension lacks a shared module
HOW = "In an environment of its own, so that this one's JupyterLab stays as it is: pip install 'parallel-lab[live]'"
KERNEL = ("micropip", "ipython", "jedi", "comm", "traitlets")  # what JupyterLite's kernel asks for at its start
BUILDERS = ("jupyterlite_core", "jupyterlite_pyodide_kernel")
EXTENSIONS = ("@jupyterlite/pyodide-kernel-extension", "@jupyter-widgets/jupyterlab-manager", "anywidget")
SETTINGS = "@jupyterlite/pyodide-kernel-extension:kernel"
PYODIDE = "static/pyodide"
LIMIT_S = 600
OF_A_LAB = Limits(60, 0.5)  # what its page replays; the rest is computed
PAGE = """<!doctype html>
{mark}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>parallel_lab</title>
<script id="jupyter-config-data" type="application/json" data-jupyter-lite-root=".">{{}}</script>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
</style>
</head>
<body>
<h1>parallel_lab</h1>
<p>The lessons run here, in your browser: nothing is installed, and nothing that you write leaves it. Ranks are
simulated, with the numbers of real ones; cells that need processes say so.</p>
<p><strong>{size}</strong></p>
<h2>Lessons</h2>
<ul>
{lessons}
</ul>
<h2>Labs</h2>
<p>Each is a page that replays what was computed, and computes more once you ask it to.</p>
<ul>
{labs}
</ul>
<p>What you write is kept in this browser. What <code>check</code> has said is in the small file
<code>checks.json</code> next to the lessons: download it, and give it to your teacher.</p>
</body>
</html>
"""


def write_live_site(
    out: Path, lessons: Iterable[Path], pyodide: Path | None = None, tell: Callable[[str], object] = print
) -> Path:
    """The site in the folder `out`.

    pyodide   a folder with Pyodide: of its distribution, or of npm's package; None: the usual address
    tell      receives a line about what is done, and what is missing

    Raises MissingPackage without JupyterLite, DataFileError for folders that cannot be read or written.
    """
    if missing := [name for name in BUILDERS if importlib.util.find_spec(name) is None]:
        raise MissingPackage(f"{' and '.join(missing)} not found", hint=HOW)
    out, index = out.expanduser().resolve(), out.expanduser().resolve() / "index.html"
    if out.exists() and not (index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")[:200]):
        what = "is there already, and was not made by parallel-lab site --live"
        raise DataFileError(what, where=str(out), hint="Name another folder")
    part = out.parent / f".{out.name}.{secrets.token_hex(8)}.part"
    try:
        part.mkdir(parents=True)
        lessons = list(lessons)
        tell("building JupyterLite")
        _build_lite(part, lessons)
        place = part / PYODIDE
        place.mkdir(parents=True)
        lock, base = _read_lock(pyodide)
        if pyodide is not None:
            for name in CORE:
                shutil.copyfile(pyodide / name, place / name)
        tell("fetching wheels")
        sizes = _fill(place, lock, pyodide, base, tell)
        (place / "pyodide-lock.json").write_text(json.dumps(lock), encoding="utf-8")
        (place / "size.json").write_text(json.dumps({"bytes": sum(sizes.values())}), encoding="utf-8")
        tell("writing the labs' pages")
        labs = _write_labs(part)
        _configure(part, f"{base}pyodide.mjs" if pyodide is None else f"./{PYODIDE}/pyodide.mjs")
        index_page = _index(lessons, labs, _size_text(part, sizes, pyodide is None))
        (part / "index.html").write_text(index_page, encoding="utf-8")
        old = part.with_suffix(".old")
        if out.exists():
            out.rename(old)
        part.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise DataFileError(
            f"cannot be made: {error.filename or ''} {error.strerror or error}", where=str(out)
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out


# ---- JupyterLite ----


def _build_lite(part: Path, lessons: list[Path]) -> None:
    """JupyterLite with the lessons as its files, and the extensions of widgets and kernel, none of this machine's."""
    work = part.with_suffix(".work")
    contents = work / "contents"
    contents.mkdir(parents=True)
    for path in lessons:
        shutil.copyfile(path, contents / path.name)
    config = {"ignore_sys_prefix": ["federated_extensions"], "federated_extensions": list(map(str, _extensions()))}
    (work / "jupyter_lite_config.json").write_text(json.dumps({"LiteBuildConfig": config}), encoding="utf-8")
    command = [sys.executable, "-m", "jupyterlite_core", "build", f"--lite-dir={work}", f"--contents={contents}"]
    command += [f"--output-dir={part}", "--apps=lab", "--no-sourcemaps", "--no-unused-shared-packages"]
    command += ["--no-libarchive"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, errors="replace")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if done.returncode:
        raise DataFileError(f"JupyterLite was not built: {(done.stderr or done.stdout)[-800:]}", where=str(part))


def _extensions() -> list[Path]:
    folders = [Path(sys.prefix, "share", "jupyter", "labextensions", name) for name in EXTENSIONS]
    if missing := [folder.name for folder in folders if not folder.is_dir()]:
        raise MissingPackage(f"the extension of JupyterLab {', '.join(missing)}", hint=HOW)
    return folders


def _configure(part: Path, pyodide_url: str) -> None:
    """Where the kernel finds Pyodide and its lock; nothing is asked of PyPI."""
    path = part / "jupyter-lite.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    config = settings.setdefault("jupyter-config-data", {})
    config["appName"] = "parallel_lab"
    kernel = config.setdefault("litePluginSettings", {}).setdefault(SETTINGS, {})
    kernel["pyodideUrl"], kernel["disablePyPIFallback"] = pyodide_url, True
    kernel["loadPyodideOptions"] = {"lockFileURL": f"./{PYODIDE}/pyodide-lock.json"}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")


# ---- Pyodide and wheels ----


def _read_lock(pyodide: Path | None) -> tuple[dict[str, Any], str]:
    """The lock, and where its files are: "" for the folder, else the usual address, of the kernel's version."""
    if pyodide is not None:
        if missing := [name for name in (*CORE, "pyodide-lock.json") if not (pyodide / name).is_file()]:
            hint = "Unpack pyodide-VERSION.tar.bz2 of its releases, or npm's package pyodide"
            raise DataFileError(f"without {', '.join(missing)}", where=str(pyodide), hint=hint)
        return read_json(pyodide / "pyodide-lock.json", DataFileError), ""
    scripts = "".join(p.read_text(encoding="utf-8") for p in (_extensions()[0] / "static").glob("*.js"))
    found = re.search(r"https://cdn\.jsdelivr\.net/pyodide/v[\d.]+/full/", scripts)
    if found is None:
        raise DataFileError("its Pyodide's address was not found", where=EXTENSIONS[0], hint="Give --pyodide FOLDER")
    with urllib.request.urlopen(f"{found[0]}pyodide-lock.json", timeout=60) as file:
        return json.load(file), found[0]


def _fill(
    place: Path, lock: dict[str, Any], pyodide: Path | None, base: str, tell: Callable[[str], object]
) -> dict[str, int]:
    """Keep in the lock what is needed, with its files in `place`; {file: bytes}, 0 where the file is elsewhere."""
    known, kept, sizes = lock["packages"], {}, {}
    wheel = own_wheel(place)
    waiting, wheels = [*KERNEL, *_needs(wheel)], {"parallel-lab": wheel}
    missing = []
    while waiting:
        names = [name for name in dict.fromkeys(map(_plain, waiting)) if name not in kept and name not in wheels]
        waiting, asked = [], {}
        for name in names:
            entry = known.get(name)
            if entry is None:
                asked[name] = name
                continue
            kept[name], file = entry, entry["file_name"]
            waiting += entry["depends"]
            if pyodide is not None and (pyodide / file).is_file():
                shutil.copyfile(pyodide / file, place / file)
            elif pyodide is None:
                kept[name] = {**entry, "file_name": f"{base}{file}"}
            elif file.endswith("-none-any.whl"):
                asked[name] = f"{name}=={entry['version']}"
            else:
                missing.append(file)
        for name, fetched in _fetch(asked, place).items():
            if name in kept:
                kept[name] = {**kept[name], "file_name": fetched.name, "sha256": _checksum(fetched)}
            else:
                wheels[name] = fetched
                waiting += _needs(fetched)
    kept |= {name: _entry(name, wheel) for name, wheel in wheels.items()}
    lock["packages"] = dict(sorted(kept.items()))
    for path in place.iterdir():
        sizes[path.name] = path.stat().st_size
    for file in missing:
        tell(f"without {file}: only Pyodide builds it; lessons stop where it is imported")
    return sizes


def _fetch(asked: dict[str, str], place: Path) -> dict[str, Path]:
    """{name: its wheel, in `place`}, pure ones from PyPI.  asked: {name: requirement}"""
    if not asked:
        return {}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform=any"]
    command += ["--implementation=py", "--abi=none", "--python-version=3.14", f"--dest={place}", *asked.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, errors="replace")
    if done.returncode:
        raise DataFileError(f"not fetched: {done.stderr.strip()[-500:]}", where=", ".join(asked))
    by_name = {_plain(path.name.partition("-")[0]): path for path in place.glob("*.whl")}
    return {name: by_name[_plain(name)] for name in asked}


def _plain(name: str) -> str:
    """A package's name as all spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _entry(name: str, wheel: Path) -> dict[str, Any]:
    """A wheel in the lock."""
    with zipfile.ZipFile(wheel) as file:
        tops = {path.partition("/")[0] for path in file.namelist() if path.endswith(".py")}
    imports = sorted(top.removesuffix(".py") for top in tops if not top.endswith((".dist-info", ".data")))
    own = {"name": name, "version": wheel.name.split("-")[1], "file_name": wheel.name, "sha256": _checksum(wheel)}
    how = {"install_dir": "site", "package_type": "package", "unvendored_tests": False}
    return {**own, **how, "imports": imports, "depends": _needs(wheel)}


def _needs(wheel: Path) -> list[str]:
    """Names of what a wheel needs in a browser; those that the page's kernel brings itself left out."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as file:
        path = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = file.read(path).decode("utf-8").partition("\n\n")[0].splitlines()
    found = [Requirement(line.partition(":")[2]) for line in lines if line.startswith("Requires-Dist:")]
    here = {"sys_platform": "emscripten", "platform_system": "Emscripten", "python_version": "3.14", "extra": ""}
    needed = [_plain(one.name) for one in found if one.marker is None or one.marker.evaluate(here)]
    return [name for name in needed if name not in ("widgetsnbextension", "jupyterlab-widgets")]


def own_wheel(folder: Path) -> Path:
    """This package, as it is installed or in its checkout, as a wheel in `folder`: no network, no build tools."""
    label = f"parallel_lab-{version()}"
    package = Path(__file__).resolve().parents[1]
    parts = {"parallel_lab": package}
    parts |= {f"parallel_lab/_shipped/{name}": shipped_folder(name) for name in ("notebooks", "data")}
    wheel, rows = folder / f"{label}-py3-none-any.whl", []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:

        def add(name: str, content: bytes) -> None:
            entry = zipfile.ZipInfo(name)  # without the time: equal files make equal wheels
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
            rows.append(f"{name},,{len(content)}")

        for inner, source in parts.items():
            for path in sorted(source.rglob("*")):
                left_out = {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
                if path.is_file() and not left_out and not (inner == "parallel_lab" and "_shipped" in path.parts):
                    add(f"{inner}/{path.relative_to(source).as_posix()}", path.read_bytes())
        add(f"{label}.dist-info/METADATA", _metadata().encode())
        add(f"{label}.dist-info/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        add(f"{label}.dist-info/RECORD", "\n".join([*rows, f"{label}.dist-info/RECORD,,"]).encode())
    return wheel


def _metadata() -> str:
    """Name, version and requirements: of a checkout as its project file says now."""
    checkout = checkout_folder()
    if checkout is None:
        return importlib.metadata.distribution("parallel-lab").read_text("METADATA") or ""
    import tomllib

    needed = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = ["Metadata-Version: 2.1", "Name: parallel-lab", f"Version: {version()}"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in needed)]) + "\n"


# ---- the first page ----


def _size_text(part: Path, sizes: dict[str, int], elsewhere: bool) -> str:
    """What a lesson downloads when it is opened first."""
    lite = sum(p.stat().st_size for p in (part / "build").rglob("*") if p.is_file())
    text = f"The first lesson downloads about {bytes_text(sum(sizes.values()))} for Python and its packages"
    text += ", numpy and Python itself not counted," if elsewhere else ""
    return f"{text} and up to {bytes_text(lite)} for JupyterLab; the browser keeps them."


def _write_labs(part: Path) -> list[tuple[str, str]]:
    """A page of each lab, as it begins; (file, title) of each."""
    made = []
    for name, folder in LABS.items():
        lab = getattr(importlib.import_module(f"..lab.{folder}.model", __package__), name)()
        file = f"{name}.html"
        lab.to_html(part / file, limits=OF_A_LAB, live=True)
        made.append((file, str(lab.snapshot()["title"])))
    return made


def _index(lessons: list[Path], labs: list[tuple[str, str]], size: str) -> str:
    items = []
    for path in lessons:
        book = json.loads(path.read_text(encoding="utf-8"))
        text = next(("".join(c["source"]) for c in book["cells"] if c["cell_type"] == "markdown"), path.stem)
        title = escape(text.strip().partition("\n")[0].lstrip("# "))
        items.append(f'<li><a href="lab/index.html?path={path.name}">{title}</a></li>')
    pages = [f'<li><a href="{file}">{escape(title)}</a></li>' for file, title in labs]
    return PAGE.format(mark=MARK, size=escape(size), lessons="\n".join(items), labs="\n".join(pages))
