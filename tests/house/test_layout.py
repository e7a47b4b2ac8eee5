"""What keeps the house true: the wheel holds exactly the library, and no layer looks up."""

from __future__ import annotations

import ast
import configparser
import functools
import graphlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ["tools", "envs", "wrappers", "rollout", "front"]
ALIASES = {"toolgym_v1": "rollout/adapters/verifiers/toolgym_v1"}
"""Packages at the top whose name a trainer decides: verifiers imports a taskset by its id."""


def package_dirs() -> dict[str, str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["package_dir"].split()
    return dict(zip(lines[::3], lines[2::3], strict=True))


def import_name(path: Path) -> str:
    """The import name of a file of the tree."""
    layer, *rest = path.relative_to(ROOT).with_suffix("").parts
    parts = ["toolgym"] if layer == "front" else ["toolgym", layer]
    return ".".join([*parts, *(part for part in rest if part != "__init__")])


def sources(layer: str) -> list[Path]:
    return [path for path in sorted((ROOT / layer).rglob("*.py")) if "__pycache__" not in path.parts]


def imported(path: Path, by_name: bool = True) -> set[str]:
    """Absolute names that a file imports, anywhere in it; with `by_name` also those that it names in a string."""
    facts = facts_of(path.read_text(encoding="utf-8"))
    assert not facts.relative, f"{path}: relative import"
    named = {text.partition(":")[0] for text in facts.texts if text.startswith("toolgym.")}  # entry points by name
    return facts.names | named if by_name else set(facts.names)


@dataclass(frozen=True)
class Facts:
    """What the tests look at in a source.

    Attributes:
        names: absolute names that the source imports.
        relative: whether the source has a relative import.
        texts: its strings.
        attributes: names of attributes that it uses.
        classes: its classes.
    """

    names: frozenset[str]
    relative: bool
    texts: frozenset[str]
    attributes: frozenset[str]
    classes: tuple[ClassFacts, ...]


@dataclass(frozen=True)
class ClassFacts:
    """A class: its name, the expressions of its bases, and its methods except those that pydantic calls."""

    name: str
    bases: tuple[str, ...]
    methods: tuple[str, ...]


@functools.cache
def facts_of(source: str) -> Facts:
    """Return the facts of a source. Cached, because dozens of tests look at each file, and parsing it is slow."""
    names: set[str] = set()
    texts: set[str] = set()
    attributes: set[str] = set()
    classes: list[ClassFacts] = []
    relative = False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Constant):
            texts |= {node.value} if isinstance(node.value, str) else set()
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative |= node.level != 0
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            classes.append(_class_facts(node))
    return Facts(frozenset(names), relative, frozenset(texts), frozenset(attributes), tuple(classes))


def _class_facts(node: ast.ClassDef) -> ClassFacts:
    methods = tuple(
        method.name
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("validator" in ast.unparse(decorator) for decorator in method.decorator_list)
    )
    return ClassFacts(node.name, tuple(ast.unparse(base).partition("[")[0] for base in node.bases), methods)


def layer_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "toolgym":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS[:-1] else "front"


@pytest.mark.parametrize("layer", LAYERS)
def test_no_layer_imports_a_higher_one(layer):
    height = LAYERS.index(layer)
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(layer)
        for name in imported(path)
        if (other := layer_of(name)) is not None and LAYERS.index(other) > height
    ]
    assert wrong == []


def test_the_layer_rule_can_fail():
    assert layer_of("toolgym.rollout.batch.make") == "rollout"
    assert layer_of("toolgym.version") == "front"
    assert layer_of("torch.nn") is None


def test_every_layer_is_mapped():
    expected = {"toolgym": "front"} | {f"toolgym.{layer}": layer for layer in LAYERS[:-1]}
    assert package_dirs() == expected | ALIASES


ORDERS = {
    "tools": [
        "errors",
        "lazy",
        "message",
        "schema",
        "views",
        "base",
        "concurrency",
        "http",
        "serving",
        "parsers",
        "sandbox",
        "confined",
        "answers",
        "sessions",
        "library",
        "judge",
        "search",
        "mcp",
        "integrations",
    ],
    "tools/sandbox": ["base", "local", "protocol", "remote", "playground", "server"],
    "tools/sandbox/local": ["kernel", "protocol", "child", "zygote", "broker"],
    "envs": [
        "tasks",
        "types",
        "base",
        "actions",
        "failure",
        "rewards",
        "users",
        "driven_episode",
        "result_text",
        "tool_instances",
        "tool_env",
        "as_tools",
        "foreign",
        "library",
        "families",
        "served",
    ],
    "envs/served": ["catalog", "session", "env_session", "sessions", "environments", "openenv", "ors"],
    "envs/served/environments": ["config", "face", "app"],
    "envs/served/openenv": ["turns", "mcp", "api"],
    "envs/served/sessions": ["protocol", "backends", "client", "store", "config", "session", "app"],
    "rollout": [
        "limits",
        "job",
        "models",
        "engines",
        "trajectory",
        "advantages",
        "batch",
        "views",
        "tokens",
        "episode",
        "runner",
        "endpoint",
        "adapters",
        "recording",
        "orchestrator",
    ],
    "rollout/episode": [
        "config",
        "env_lifecycle",
        "turn_sampling",
        "context",
        "record",
        "episode",
    ],
}
"""Rooms of a folder, lowest first: none imports one that stands behind it."""

FOLDERS = [
    folder
    for layer in LAYERS
    for folder in [ROOT / layer, *sorted(path for path in (ROOT / layer).rglob("*") if path.is_dir())]
    if "__pycache__" not in folder.parts and list(folder.glob("*.py"))
]


def rooms_of(folder: Path, name: str) -> dict[str, set[str]]:
    """From each room of a folder, a file or a subpackage, to the other rooms of it that it imports.

    Entry points that stand in strings do not count: they are how a room refers to a higher one without importing it.
    """
    arrows: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path == folder / "__init__.py" or "__pycache__" in path.parts:
            continue
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        inside = {other.removeprefix(f"{name}.").partition(".")[0] for other in imported(path, by_name=False)
                  if other.startswith(f"{name}.")}  # fmt: skip
        arrows.setdefault(room, set()).update(inside - {room})
    return {room: {other for other in others if other in arrows} for room, others in arrows.items()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Rooms that import each other in a circle; empty where there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_rooms_of_a_folder_import_one_way(folder):
    assert circle(rooms_of(folder, import_name(folder / "__init__.py"))) == []


@pytest.mark.parametrize("folder", ORDERS)
def test_rooms_stand_in_their_order(folder):
    order, arrows = ORDERS[folder], rooms_of(ROOT / folder, import_name(ROOT / folder / "__init__.py"))
    assert set(order) <= set(arrows), f"no such room in {folder}"
    wrong = [
        f"{room} imports {other}"
        for room in order
        for other in arrows[room] & set(order)
        if order.index(other) > order.index(room)
    ]
    assert wrong == []


def test_the_rule_of_rooms_can_fail(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "__init__.py").write_text("from toolgym.tools.outer import one as one\n")
    (tmp_path / "outer.py").write_text("def late():\n    from toolgym.tools.inner.deep import one\n")
    (tmp_path / "inner" / "deep.py").write_text("HOME = 'toolgym.tools.outer:one'\n")
    arrows = rooms_of(tmp_path, "toolgym.tools")
    assert (arrows, circle(arrows)) == ({"outer": {"inner"}, "inner": set()}, [])
    (tmp_path / "inner" / "deep.py").write_text("from toolgym.tools import outer\n")
    assert set(circle(rooms_of(tmp_path, "toolgym.tools"))) == {"outer", "inner"}


LOCAL = ROOT / "tools/sandbox/local"
PROCESSES = ORDERS["tools/sandbox/local"]
"""The rooms that the processes of a local sandbox are made of, lowest first."""


def wrong_imports(room: str, allowed: set[str]) -> dict[str, set[str]]:
    """What the files of a room of the local sandbox import from rooms other than the allowed ones."""
    package = import_name(LOCAL / "__init__.py")
    files = sorted((LOCAL / room).glob("*.py"))
    assert files
    rooms = {
        path.name: {
            name.removeprefix(f"{package}.").partition(".")[0]
            for name in imported(path, by_name=False)
            if name.startswith(package)
        }
        for path in files
    }
    return {name: found - allowed for name, found in rooms.items() if found - allowed}


@pytest.mark.parametrize("room", PROCESSES)
def test_a_process_of_the_sandbox_imports_only_its_room_and_lower_ones(room):
    """The trust boundary is a folder boundary."""
    assert not wrong_imports(room, set(PROCESSES[: PROCESSES.index(room) + 1]))


def test_the_host_never_imports_what_runs_in_a_template_process():
    assert not wrong_imports("host", {"host", "images", "kernel", "protocol"})
    assert not wrong_imports("images", {"images", "kernel"})


@pytest.mark.parametrize("room", PROCESSES)
def test_a_template_process_needs_nothing_but_the_standard_library(room):
    """Its Python may be one without toolgym, and without any other package."""
    package = import_name(LOCAL / "__init__.py")
    for path in sorted((LOCAL / room).glob("*.py")):
        names = imported(path, by_name=False)
        outside = {name.partition(".")[0] for name in names if not name.startswith(f"{package}.")}
        assert outside <= sys.stdlib_module_names, path.name


@pytest.mark.wheel
def test_the_wheel_holds_exactly_the_librarys_files(tmp_path):
    copy = tmp_path / "copy"  # building in the checkout would leave a build folder there
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, copy],
        check=True,
        timeout=300,
    )
    [wheel] = tmp_path.glob("toolgym-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(n).decode() for n in archive.namelist() if n.endswith("/METADATA"))
    wanted = set()
    for layer in LAYERS:
        prefix = Path("toolgym") if layer == "front" else Path("toolgym") / layer
        for path in (ROOT / layer).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wanted.add(str(prefix / path.relative_to(ROOT / layer)))
    for name, folder in ALIASES.items():
        inside = str(Path("toolgym") / folder)
        wanted = {name + one.removeprefix(inside) if one.startswith(inside) else one for one in wanted}
    assert held == wanted
    assert "Requires-Python: >=3.11" in metadata
    for extra in ("cli", "rollout", "sglang", "ray", "trl", "verl", "testing", "dev"):
        assert f"Provides-Extra: {extra}" in metadata


def test_no_room_is_called_utils():
    names = {path.stem for layer in LAYERS for path in sources(layer)}
    assert names.isdisjoint({"utils", "common", "helpers", "misc"})


def test_public_names_resolve_and_are_documented():
    import importlib

    for module_name in (
        "toolgym",
        "toolgym.tools",
        "toolgym.envs",
        "toolgym.wrappers",
        "toolgym.rollout",
        "toolgym.testing",
    ):
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert value.__doc__, f"{module_name}.{name} has no docstring"
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError):
            module.no_such_name  # noqa: B018


def test_no_thread_of_an_event_loop_is_the_librarys():
    """Foreign code may fill those with functions that hang; see `toolgym.tools.concurrency.blocking`."""
    refused = {"to_thread", "run_in_executor"}
    for path in (path for layer in LAYERS for path in sources(layer)):
        names = facts_of(path.read_text(encoding="utf-8")).attributes
        assert not names & refused, f"{path}: use tools.concurrency.blocking"


FROM_ELSEWHERE = {"_np_csc", "_proc_sparse", "_validate_definition"}
"""Private methods that classes of other libraries call."""


def test_each_private_method_is_called_where_its_class_or_a_relative_stands():
    """An override of a method that its base has no more is never called, and nothing else says so."""
    uses, bases, methods = {}, {}, []
    for path in (path for layer in LAYERS for path in sources(layer)):
        facts = facts_of(path.read_text(encoding="utf-8"))
        names = facts.attributes | facts.texts  # as `getattr` takes it
        for cls in facts.classes:
            full = _full_name(cls.name, path)
            uses.setdefault(full, set()).update(names)
            bases.setdefault(full, set()).update(_full_name(base, path) for base in cls.bases)
            methods += [(full, method) for method in cls.methods]
    ancestors = {name: {name} for name in bases}
    for name in graphlib.TopologicalSorter(bases).static_order():
        ancestors.setdefault(name, {name}).update(*(ancestors.get(base, ()) for base in bases.get(name, ())))

    @functools.cache
    def used_by_relatives(cls: str) -> set[str]:
        relatives = [other for other in bases if other in ancestors[cls] or cls in ancestors[other]]
        return set().union(*(uses[other] for other in relatives))

    assert not [
        f"{cls}.{method}"
        for cls, method in methods
        if method.startswith("_") and not method.endswith("_") and method not in FROM_ELSEWHERE
        if method not in uses[cls]  # most; relatives take longer
        if method not in used_by_relatives(cls)
    ]


def _full_name(cls: str, path: Path) -> str:
    """The name of a class: only public ones differ throughout the library."""
    name = cls.rpartition(".")[2]
    return f"{path}:{name}" if name.startswith("_") else name
