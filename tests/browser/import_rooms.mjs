// node import_rooms.mjs PYODIDE_FOLDER STAND_IN MARKUPSAFE: the interpreter starts from the folder, this package and what it
// needs come from its lock, and with a stand-in for numpy every room is imported. Prints JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, standIn, markupsafe] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: folder });
const lacking = [];
await python.loadPackage(["parallel-lab", "ipython"], { errorCallback: (text) => lacking.push(text), messageCallback: () => {} });
python.FS.writeFile("/home/pyodide/numpy_stand_in.py", readFileSync(standIn));
python.FS.mkdirTree("/home/pyodide/markupsafe"); // its Python files: Pyodide builds the other one
for (const name of ["__init__.py", "_native.py"]) {
    python.FS.writeFile(`/home/pyodide/markupsafe/${name}`, readFileSync(`${markupsafe}/${name}`));
}
const found = python.runPython(`
import json, sys
def plain():
    try:
        import parallel_lab
    except ImportError as error:
        return str(error)
without = plain()
for name in [name for name in sys.modules if name.startswith("parallel_lab")]:
    del sys.modules[name]
import numpy_stand_in
numpy_stand_in.become_numpy()
found = numpy_stand_in.import_rooms()
from parallel_lab.base.driver import DRIVER
from parallel_lab.base.system import SYSTEM
json.dumps({**found, "without": without, "python": sys.version.split()[0], "form": DRIVER.form, "system": SYSTEM.name})
`);
console.log(JSON.stringify({ ...JSON.parse(found), lacking }));
