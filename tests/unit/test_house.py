"""The house's own laws, read off its source: who imports whom, and what each file opens with."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

from notifier.scripts.loader import names_of
from tests.harness.words import RETIRED, RIDDLE, SMALL

ROOT = Path(__file__).parents[2]
MODULES = sorted([*(ROOT / "notifier").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
SCRIPTS = sorted((ROOT / "notifier").rglob("*.lua"))

# Each driver, and the one module of the product that imports it. The simulators stand on the other side of the
# wire and bring what a server needs.
DRIVERS = {
    "h2": ("notifier/providers/transport/http2", "notifier/providers/apns/pyapns2/compat"),
    "apns2": "notifier/providers/apns/pyapns2/compat",
    "pyfcm": "notifier/providers/fcm/",
    "aiohttp": "notifier/providers/transport/http1",
    "google": "notifier/providers/fcm/",
    "jwt": "notifier/providers/apns",
    "py_vapid": "notifier/providers/webpush/crypto",
    "yaml": "notifier/settings/yaml_source",
    "rich": ("workers/demo/", "notifier/cli/"),
    "typer": "notifier/cli/",
    "tzdata": "notifier/rules/zones",
    "fastapi": "notifier/limiter/middleware/fastapi",
    "flask": "notifier/limiter/middleware/flask",
    "django": ("notifier/limiter/middleware/django", "notifier/django/"),
    "opentelemetry": "notifier/queue/spans",
    "prometheus_client": "notifier/server/metrics",
    "uvicorn": "notifier/server/",
}

SCREEN = 40
LUA_FUNCTION = re.compile(r"(?:local )?function ([\w.:]+)")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, *, top: bool = False) -> list[str]:
    """The modules that a file imports; top: those alone that are imported with it."""
    return list(_imports(parsed(path), path, top=top))


def _imports(tree: ast.Module, path: Path, *, top: bool) -> Iterator[str]:
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            yield node.module or ""


def test_the_tests_know_no_benchmark() -> None:
    """What tests and benchmarks share stands beside the tests, so that a benchmark may change as it likes."""
    ours = [path for path in (ROOT / "tests").rglob("*.py") if ".peers" not in path.parts]  # those are others' clients
    assert len(ours) > 100
    for path in ours:
        assert not [module for module in imports(path) if module.partition(".")[0] == "benchmarks"], path


def test_the_product_knows_no_test() -> None:
    """Nothing of the product imports tests, benchmarks or examples. Its layers are held by import-linter: make lint."""
    for path in MODULES:
        for module in imports(path):
            first = module.partition(".")[0]
            assert first not in {"tests", "benchmarks", "examples", "config"}, (name(path), module)


def test_no_circles() -> None:
    """No module imports itself by way of others, not for its types either."""
    graph = grimp.build_graph("notifier", "workers", cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in leaves}
    assert sorted(left) == []


def test_the_root_is_a_table_of_contents() -> None:
    """At the root of the package stand its rooms, and what every room needs."""
    at_the_root = {path.stem for path in (ROOT / "notifier").glob("*.py")}
    assert at_the_root == {"__init__", "errors", "lazy", "log", "texts", "units"}


@pytest.mark.parametrize("driver", DRIVERS)
def test_one_place_imports_each_driver(driver: str) -> None:
    """A driver is imported in one place, so that it can be exchanged there."""
    product = [path for path in MODULES if not name(path).startswith("notifier/simulators/")]
    users = [name(path) for path in product if driver in {module.partition(".")[0] for module in imports(path)}]
    allowed = DRIVERS[driver]
    assert users
    assert [user for user in users if not user.startswith(allowed) and not (driver == "yaml" and "demo" in user)] == []


def test_nothing_happens_at_import() -> None:
    """Importing every module opens no file but source, no socket, starts no process and no thread."""
    code = f"""
import sys, threading
acts = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn"):
        acts.append((event, repr(arguments)[:200]))
    if event == "open" and isinstance(arguments[0], str) and (
        isinstance(arguments[1], str) and set(arguments[1]) & set("wa+") or arguments[0].endswith((".yaml", ".lua"))
    ):
        acts.append((event, arguments[0]))
import aiohttp, redis, rq, rq.worker, pyfcm, pywebpush, google.auth, structlog, pydantic, rich.live
import prometheus_client, starlette.applications, uvicorn
sys.dont_write_bytecode = True
sys.addaudithook(watch)
for module in {sorted(name(path)[:-3].replace("/", ".").removesuffix(".__init__") for path in MODULES)!r}:
    # What stands on apns2 can be imported in an environment of its own alone.
    if not module.endswith("__main__") and not module.startswith("notifier.providers.apns.pyapns2."):
        __import__(module)
assert not acts, acts
assert threading.active_count() == 1
import structlog
assert not structlog.is_configured()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_keys_are_named_in_one_place() -> None:
    """No module and no script spells a key of Redis: each asks notifier/scripts/keys.py."""
    spelled = re.compile(r"""["'](?:notifier|rq):(?!\s)""")
    found = [
        f"{name(path)}:{number}"
        for path in MODULES + SCRIPTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if spelled.search(line) and name(path) != "notifier/scripts/keys.py"
    ]
    assert found == []


def test_a_function_fits_a_screen() -> None:
    """No function has more than 40 lines: in Lua from its name to its end, in Python below its docstring."""
    functions = [*_lua_functions(), *_python_functions()]
    assert len(functions) > 1_000
    long = [f"{function} in {file}: {lines} lines" for function, file, lines in functions if lines > SCREEN]
    assert long == []


def _python_functions() -> Iterator[tuple[str, str, int]]:
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield node.name, name(path), lines


def _lua_functions() -> Iterator[tuple[str, str, int]]:
    """Those that stand at the margin; what is inside them is part of them."""
    for path in SCRIPTS:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if begins := LUA_FUNCTION.match(line):
                ends = number if line.endswith(" end") else lines.index("end", number)
                yield begins[1], name(path), ends - number + 1


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_opens_with_its_contract(path: Path) -> None:
    """Each Lua file begins with a comment that says what it does; a verb's says its arguments and its reply."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = list(_header(lines))
    if path.stem not in names_of():
        assert any(line.startswith("-- ") for line in lines)
        return
    assert header[0].startswith(f"-- {path.stem}: ")
    assert any(line.startswith(("-- ARGV ", "-- KEYS ")) for line in header)
    assert any(line.startswith("-- returns ") for line in header)


def _header(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("--") or line.startswith("--!"):
            return
        yield line


def test_a_unit_test_stands_where_its_module_does() -> None:
    """Each test in a room of tests/unit is named after the module that it tests; what tests no module is at the top."""
    unit = ROOT / "tests" / "unit"
    stray = []
    for path in unit.glob("*/**/test_*.py"):
        room, module = path.relative_to(unit).parent, f"{path.stem.removeprefix('test_')}.py"
        if not any((ROOT / above / room / module).is_file() for above in ("notifier", "", "tests")):
            stray.append(name(path))
    assert stray == []


def test_the_map_names_what_is_there() -> None:
    """Each path that CONTRIBUTING.md names is there, so that its map leads to a file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [ROOT, ROOT / "notifier", ROOT / "notifier" / "scripts"]
    named = [path for path in re.findall(r"`([a-z_]+/[\w./-]*)`", text) if "<" not in path]
    assert len(named) > 25
    assert [path for path in named if not any((room / path).exists() for room in rooms)] == []


def test_the_map_of_the_scripts_names_what_is_there() -> None:
    """Each file that the map beside the scripts names is there, and has the function that is named after it."""
    text = (ROOT / "notifier" / "scripts" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+\? \| (.+) \|$", text, re.MULTILINE)
    named = [found for row in rows for found in re.findall(r"`(\w+/\w+\.lua)`((?: (?:and )?\*\w+\*)*)", row)]
    assert len(named) > 20
    for path, functions in named:
        piece = (ROOT / "notifier" / "scripts" / "lua" / path).read_text(encoding="utf-8")
        for function in re.findall(r"\*(\w+)\*", functions):
            assert re.search(rf"function (?:\w+\.)?{function}\(", piece), (path, function)


def test_the_table_of_rooms_is_whole() -> None:
    """Each folder of the package, and no other, has a row that says what is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "notifier").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `notifier/(\w+)/` \|", text, re.MULTILINE)) == rooms


def test_no_folder_is_crowded() -> None:
    """A folder of modules has at most 20 files; those of the scripts stay to be sorted by what they serve."""
    sources = [path.parent for path in MODULES + SCRIPTS if "lua" not in path.parts]
    assert {name(folder): n for folder, n in Counter(sources).items() if n > 20} == {}


def test_the_map_answers_each_question_by_a_file() -> None:
    """Twelve questions and more lead to a file each; what a rule, a platform, a metric and a command take is listed."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    answers = dict(re.findall(r"^\| ([^|]+\?) \| (.+) \|$", text, re.MULTILINE))
    assert len(answers) >= 12
    for question, answer in answers.items():
        assert re.search(r"`[\w/]+\.(?:py|lua)`", answer), question
    for what in ("a rule", "a platform", "a metric", "a command"):
        steps = text.partition(f"## Add {what}\n")[2].partition("\n## ")[0]
        assert "git log --grep" in steps
        assert len(re.findall(r"`notifier/[\w/]+(?:\.py|\.lua)?`", steps)) >= 2, what
        assert "ests" in steps
        assert "docs/" in steps, what


def test_no_pickle_anywhere() -> None:
    """Nothing loads or writes pickle, or leaves RQ its default serializer, but the reader that runs nothing."""
    for path in MODULES:
        if path.name != "rq_call.py":
            assert not {"pickle", "cPickle", "dill", "marshal", "shelve"} & set(imports(path)), name(path)
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "Job",
                "Job.fetch",
                "Queue",
                "self.queue_class",
            }:
                assert "serializer=" in ast.unparse(node), (name(path), ast.unparse(node))


def test_nobody_sleeps_in_the_product() -> None:
    """No provider and no worker blocks its event loop by `time.sleep`."""
    for path in MODULES:
        # The demo and the embedded Redis have no loop; a worker that waits for Redis, or for its file, at its start has
        # none yet; to wait is what `Limiter.wait` is for; and a thread waits for a connection that others use.
        if name(path).startswith(
            (
                "workers/demo/",
                "workers/configuration/start",
                "notifier/testing/embedded",
                "notifier/store/connection",
                "notifier/limiter/base",
                "notifier/scripts/connection_wait",
            )
        ):
            continue
        assert "time.sleep(" not in path.read_text(encoding="utf-8"), name(path)


def test_retired_words_stay_away() -> None:
    """A word that another has replaced comes back neither in code nor in a comment."""
    sources = [*MODULES, *SCRIPTS]
    found = [(name(path), word) for path in sources for word in RETIRED.findall(path.read_text(encoding="utf-8"))]
    assert found == []


def test_a_docstring_opens_with_a_verb_or_a_noun() -> None:
    """No docstring opens with a question that only its end answers: What, Who, Those."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ((path, node) for path in MODULES for node in ast.walk(parsed(path)))
    docstrings = ((name(path), ast.get_docstring(node) or "") for path, node in nodes if isinstance(node, kinds))
    assert [(path, docstring) for path, docstring in docstrings if RIDDLE.match(docstring)] == []


def test_a_docstring_says_more_than_the_signature() -> None:
    """No private function has a docstring all of whose words stand in its signature."""
    reference = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^#.*?(\w+)$", reference, re.MULTILINE))
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in public:
                signature = f"{SMALL} {node.name} {ast.unparse(node.args)} {ast.unparse(node.returns or node.args)}"
                docstring = ast.get_docstring(node) if len(node.body) > 1 else None
                assert docstring is None or _words(docstring) - _words(signature), (name(path), node.name, docstring)


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall(r"[^\W_]+", text.lower())}
