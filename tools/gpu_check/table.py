"""The table of docs/gpu.md: what is compiled, proven without a GPU, run on a GPU, or refused. Its rows are those of
docs/gpu/features.toml; the tests that they name must exist, and what ran on a GPU is read from docs/gpu/*.json."""
import json
import re
import tomllib
from pathlib import Path

from gpu_check import prove, speed
from gpu_check.report import SCHEMA

BEGIN = "<!-- made by tools/gpu-check --table -->"
END = "<!-- end of the table -->"
KEYS = {"name": str, "sources": list, "tests": list, "rows": list, "refused": str, "note": str}


def test_names(root: Path) -> set:
    """The names of all tests in the CMakeLists.txt files below tests/."""
    names = set()
    for file in sorted((root / "tests").rglob("CMakeLists.txt")):
        folder = file.parent.relative_to(root / "tests")
        text = re.sub(r"(?m)#.*$", "", file.read_text())
        for loop in re.finditer(r"foreach\((\w+) (?:IN ITEMS )?([^)]*)\)(.*?)endforeach\(\)", text, re.S):
            for item in loop[2].split():
                names |= names_in(loop[3].replace(f"${{{loop[1]}}}", item), folder)
        names |= names_in(text, folder)
    return names


def names_in(text: str, folder: Path) -> set:
    names = {found for found in re.findall(r"add_test\(\s*NAME\s+([\w/.-]+)(?=[\s)])", text)}
    for kind, name in re.findall(r"\b(?:chassis|plugin)_(cuda_test|test)\(\s*([\w-]+)(?=[\s)])", text):
        names.add(f"{folder}/{name}")
        if kind == "cuda_test":
            names |= {f"{folder}/{name}_{order}" for order in ("ascending", "descending", "shuffled", "mutants")}
    return names


def read_features(file: Path):
    """The features, and what is wrong with their table."""
    wrong, features = [], tomllib.loads(file.read_text()).get("feature", [])
    for feature in features:
        name = feature.get("name", "a feature without a name")
        for key, value in feature.items():
            if not isinstance(value, KEYS.get(key, ())):
                wrong.append(f"{file.name}: {name}: {key} is not a key, or has another type")
        if not feature.get("refused") and not feature.get("sources"):
            wrong.append(f"{file.name}: {name}: neither sources nor a refusal")
    return features, wrong


def read_reports(folder: Path):
    """The reports of GPUs, oldest first, and what is wrong with them."""
    reports, wrong = [], []
    for file in sorted(folder.glob("*.json")):
        try:
            report = json.loads(file.read_text())
        except ValueError as error:
            wrong.append(f"{file.name}: {error}")
            continue
        if report.get("schema") != SCHEMA or report.get("rehearsal") or report.get("device") == "cpu":
            wrong.append(f"{file.name} is not the report of a GPU")
        else:
            reports.append({**report, "file": file.name})
    return sorted(reports, key=lambda report: report["date"]), wrong


def rows_of(report: dict, wanted: str) -> list:
    """The rows that "stage/row" names; a stage alone names all of its rows."""
    stage, _, name = wanted.partition(":")
    rows = report["stages"].get(stage, {}).get("rows", [])
    return [row for row in rows if not name or row["name"] == name]


def on_gpu(feature: dict, reports: list) -> str:
    """The newest result: a failure is said before a success of the same report."""
    for report in reversed(reports):
        states = [row["state"] for wanted in feature.get("rows", []) for row in rows_of(report, wanted)]
        where = f"{report['card']}, {report['date'][:10]}"
        if "failed" in states:
            return f"**failed** on {where}"
        if any(state in ("passed", "measured") for state in states):
            return f"[{where}](gpu/{report['file']})"
    return "not yet"


def compiled(feature: dict) -> str:
    sources = feature.get("sources", [])
    if not sources:
        return "no"
    return "by nvcc" if any(source.endswith(".cu") for source in sources) else "yes"


def table_text(features: list, reports: list) -> str:
    lines = ["| feature | compiled | proven without a GPU | run on a GPU | refused |", "|---|---|---|---|---|"]
    for feature in features:
        tests = ", ".join(f"`{test}`" for test in feature.get("tests", []))
        note = feature.get("note", "")
        proof = f"{tests}{': ' if tests and note else ''}{note}" or "no"
        gpu = "" if feature.get("refused") and not feature.get("rows") else on_gpu(feature, reports)
        lines.append(f"| {feature['name']} | {compiled(feature)} | {proof} | {gpu} | {feature.get('refused', '')} |")
    return "\n".join(lines) + "\n"


def problems(root: Path, features: list) -> list:
    """Tests, sources and stages that do not exist."""
    known, wrong = test_names(root), []
    stages = {stage[0] for stage in prove.stages(None, False) + speed.Speed(None, False).stages()}
    for feature in features:
        wrong += [f"features.toml: {feature['name']}: there is no test {test}"
                  for test in feature.get("tests", []) if test not in known]
        wrong += [f"features.toml: {feature['name']}: there is no {source}"
                  for source in feature.get("sources", []) if not (root / source).exists()]
        wrong += [f"features.toml: {feature['name']}: there is no stage {row.partition(':')[0]}"
                  for row in feature.get("rows", []) if row.partition(":")[0] not in stages]
    return wrong


def updated(root: Path):
    """The text that docs/gpu.md should have, and what is wrong."""
    features, wrong = read_features(root / "docs/gpu/features.toml")
    reports, wrong_reports = read_reports(root / "docs/gpu")
    wrong += wrong_reports or []
    if not wrong:
        wrong = problems(root, features)
    text = (root / "docs/gpu.md").read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        return text, wrong + [f"docs/gpu.md needs one line '{BEGIN}' and after it one line '{END}'"]
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table_text(features, reports)}{END}{after}" if not wrong else text, wrong


def write_table(root: Path, only_check: bool) -> list:
    """Writes the table, or says that it is stale."""
    text, wrong = updated(root)
    page = root / "docs/gpu.md"
    if not wrong and text != page.read_text():
        if only_check:
            return ["docs/gpu.md: its table is stale; run tools/gpu-check --table"]
        page.write_text(text)
    return wrong
