"""Shows that tools/gpu-check finds what it is for, without a device and without chassis."""
import contextlib
import io
import json
import tempfile
from pathlib import Path

from gpu_check import prove, report, speed, table
from gpu_check.report import Missing, Report

import light

FEATURES = """\
[[feature]]
name = "a kernel"
sources = ["plugins/a/kernels.cu"]
tests = ["plugins/a/kernels_ascending", "regress/two"]
rows = ["tests:plugins/a/kernels", "sanitizer"]
[[feature]]
name = "b"
refused = "no kernel"
"""
PAGE = f"before\n{table.BEGIN}\n{table.END}\nafter\n"


class Failures(list):
    def expect(self, what: str, found, expected) -> None:
        if found != expected:
            self.append(f"{what}: expected {expected}, found {found}")


def stages(failures: Failures, folder: Path) -> None:
    """States of stages: a row, an exception, a missing tool, a command that does not end, no time."""
    path = folder / "report.json"
    with contextlib.redirect_stdout(io.StringIO()):
        found = Report(path, {"date": "2026-01-02", "device": "cuda"})

        def stops(deadline):
            yield "first", "passed", {}
            # A child outlives the shell unless the whole group is killed.
            done = report.run(["sh", "-c", "echo begun; sleep 100 & wait"], deadline.left(), None)
            yield "second", "cut off" if done.cut_off else "passed", {"text": done.text}

        def breaks(deadline):
            yield "first", "passed", {}
            raise ValueError("a defect")

        def misses(deadline):
            raise Missing("no tool")
            yield

        def writes(deadline):
            yield "first", "measured", {"x": 1.0}
            stage = json.loads(path.read_text())["stages"]["writes"]
            failures.expect("a report during a stage", (stage["state"], len(stage["rows"])), ("running", 1))

        for name, seconds, rows in (("stops", 1, stops), ("breaks", 9, breaks), ("misses", 9, misses),
                                    ("writes", 9, writes), ("late", 0, writes)):
            found.stage(name, seconds, rows)
        program = report.run(["sh", "-c", "echo STEP 1; sleep 100"], 9, None, lambda line: line.startswith("STEP"))
    written = json.loads(path.read_text())
    states = {name: stage["state"] for name, stage in written["stages"].items()}
    failures.expect("states", states, {"stops": "cut off", "breaks": "failed", "misses": "missing",
                                       "writes": "measured", "late": "cut off"})
    failures.expect("output before the deadline", written["stages"]["stops"]["rows"][1]["text"], "begun\n")
    failures.expect("seconds", written["stages"]["stops"]["seconds"] < 5, True)
    failures.expect("a defect fails", found.failed(), True)
    failures.expect("a command that is ended by its line", (program.code, program.seconds < 5), (0, True))
    failures.expect("a document among messages", report.document_in('warning\n{"a": {"b": 1}}\nbye\n'), {"a": {"b": 1}})
    with contextlib.suppress(Missing):
        report.run(["/nowhere/program"], 9)
        failures.append("a program that does not exist was run")


def losses(failures: Failures) -> None:
    curve = [6.0 - 0.02 * step for step in range(200)]
    for what, other, expected in (
            ("equal losses", curve, "passed"), ("a different first step", [curve[0] * 1.001, *curve[1:]], "failed"),
            ("a run that drifts", curve[:100] + [loss * 1.05 for loss in curve[100:]], "failed"),
            ("late rounding", curve[:100] + [loss * 1.001 for loss in curve[100:]], "passed"),
            ("a run that ended early", curve[:150], "cut off")):
        failures.expect(what, prove.judge(prove.differences(other, curve), prove.TOLERANCES["fp32"], 200), expected)


def light_of_steps(failures: Failures) -> None:
    model = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=128, vocab_size=100, tie_word_embeddings=False)
    linears = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3)
    failures.expect("linears", light.weights(model), dict(linears=linears, head=6400, embeddings=6400))
    failures.expect("FLOPs", light.flops_per_token(model, 10), 6.0 * (linears + 6400) + 6 * 10 * 64 * 2)
    adapter = light.adapter_elements(model, 4)
    failures.expect("an adapter", adapter, 2 * 4 * (128 * 2 + 96 * 2 + 192 * 3))
    failures.expect("FLOPs of LoRA", light.flops_per_token(model, 10, 4),
                    4.0 * (linears + 6400) + 6.0 * adapter + 6 * 10 * 64 * 2)
    failures.expect("bytes", light.bytes_per_step(model, 2.0), 4.0 * (linears + 6400) + 32.0 * (linears + 12800))
    failures.expect("bytes of 4 bits", light.bytes_per_step(model, 2.0, 4, 0.5), linears + 4.0 * 6400 + 32.0 * adapter)
    experts = dict(model, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    attention, expert = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 32
    failures.expect("linears with experts", light.weights(experts)["linears"], 2 * (attention + 64 * 8 + 8 * expert))
    failures.expect("FLOPs with experts", light.flops_per_token(experts, 10),
                    6.0 * (2 * (attention + 64 * 8 + 2 * expert) + 6400) + 6 * 10 * 64 * 2)
    failures.expect("light by products", light.percent(2e12, 1e9, 4.0, 1e12, 1e12), 50.0)
    failures.expect("light by copies", light.percent(2e9, 1e12, 4.0, 1e12, 1e12), 25.0)
    sizes = [light.weights(case.model) for case in speed.cases(False)]
    billions = [round(sum(size.values()) / 1e9, 1) for size in sizes]
    failures.expect("the models' sizes in billions", billions, [0.5, 2.8, 2.8])


def tables(failures: Failures, folder: Path) -> None:
    for path, text in (("docs/gpu.md", PAGE), ("docs/gpu/features.toml", FEATURES), ("plugins/a/kernels.cu", ""),
                       ("tests/plugins/a/CMakeLists.txt", "chassis_cuda_test(kernels\n  SOURCES a.cpp)\n"),
                       ("tests/regress/CMakeLists.txt", "foreach(name IN ITEMS one two)\n  chassis_test(${name} A)\n"
                                                        "endforeach()\n# chassis_test(three)\n")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    failures.expect("an old table", len(table.write_table(folder, only_check=True)), 1)
    failures.expect("writing", table.write_table(folder, only_check=False), [])
    failures.expect("a new table", table.write_table(folder, only_check=True), [])
    written = (folder / "docs/gpu.md").read_text()
    failures.expect("rows", [row in written for row in (
        "| a kernel | by nvcc | `plugins/a/kernels_ascending`, `regress/two` | not yet |  |",
        "| b | no | no |  | no kernel |", "before\n", "after\n")], [True] * 4)
    run = {"schema": report.SCHEMA, "device": "cuda", "card": "NVIDIA H200", "date": "2026-12-01T10:00:00",
           "stages": {"tests": {"rows": [{"name": "plugins/a/kernels", "state": "passed"}]}}}
    older = {**run, "date": "2026-11-30", "stages": {"sanitizer": {"rows": [{"name": "memcheck", "state": "failed"}]}}}
    for reports, expected in (([run], "[NVIDIA H200, 2026-12-01](gpu/0.json)"),
                              ([older], "**failed** on NVIDIA H200, 2026-11-30"),
                              ([older, run], "[NVIDIA H200, 2026-12-01](gpu/1.json)"),
                              ([run, {**older, "date": "2026-12-02"}], "**failed** on NVIDIA H200, 2026-12-02")):
        for i, one in enumerate(reports):
            (folder / f"docs/gpu/{i}.json").write_text(json.dumps(one))
        failures.expect("a stale table", len(table.write_table(folder, only_check=True)), 1)
        table.write_table(folder, only_check=False)
        failures.expect("a card", expected in (folder / "docs/gpu.md").read_text(), True)
    (folder / "docs/gpu/1.json").write_text(json.dumps({**run, "rehearsal": True}))
    failures.expect("a rehearsal", table.write_table(folder, only_check=False), ["1.json is not the report of a GPU"])
    (folder / "docs/gpu/1.json").unlink()
    for old, new, message in (("regress/two", "regress/three", "there is no test regress/three"),
                              ("a/kernels.cu", "a/k.cu", "there is no plugins/a/k.cu"),
                              ('"sanitizer"', '"sanitiser"', "there is no stage sanitiser"),
                              ('refused = "no kernel"', "", "b: neither sources nor a refusal"),
                              ("rows =", "row =", "a kernel: row is not a key, or has another type")):
        (folder / "docs/gpu/features.toml").write_text(FEATURES.replace(old, new))
        found = table.write_table(folder, only_check=False)
        failures.expect(f"a defect of the features, '{message}'", [message in line for line in found], [True])
    (folder / "docs/gpu.md").write_text("no markers\n")
    failures.expect("a page without markers", bool(table.write_table(folder, only_check=False)), True)


def run_all() -> int:
    failures = Failures()
    with tempfile.TemporaryDirectory() as scratch:
        stages(failures, Path(scratch))
        losses(failures)
        light_of_steps(failures)
        tables(failures, Path(scratch) / "tree")
    print(*(f"gpu-check --self-test: {line}" for line in failures), sep="\n", end="\n" if failures else "")
    return 1 if failures else 0
