"""Runs of `chassis train` for tools/gpu-check, and what they report."""
import json
import statistics
import sys
from pathlib import Path

from gpu_check.machine import ROOT, Machine
from gpu_check.report import Done, run

sys.path.insert(0, str(ROOT / "tools/benchmark"))
import run_inputs

LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5, rope_theta=10000.0)
LORA = '[adapter]\nplugin = "lora"\nrank = 16\n'
BNB4 = '[quant]\nplugin = "bnb4"\ndouble_quant = true\n'


def llama(layers: int, hidden: int, inner: int, heads: int, key_heads: int, vocab: int, length: int,
          tied=False) -> dict:
    return dict(LLAMA, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=key_heads, intermediate_size=inner, vocab_size=vocab,
                max_position_embeddings=length, tie_word_embeddings=tied)


class Training:
    """A configuration with its data in a folder of its own."""

    def __init__(self, machine: Machine, name: str, model: dict, seq_len: int, rows: int, steps: int, more: str = "",
                 num_rows=None):
        self.machine, self.folder, self.steps = machine, machine.scratch / name, steps
        self.folder.mkdir()
        self.tokens_per_step = seq_len * rows
        run_inputs.write_run(self.folder, model, seq_len, rows, steps, rows, device=machine.device,
                             num_rows=num_rows, more=more)

    def start(self, name: str, seconds: float, *settings: str, words=(), num_steps: int = 0) -> "Result":
        """Trains. With `num_steps`, the run is killed after so many steps: nothing is saved."""
        output = self.folder / name
        command = [self.machine.chassis, "train", self.folder / "bench.toml", f"run.output_dir={output}",
                   "log.every_steps=1", *settings, *words]
        last = f"step {num_steps}/"

        def is_enough(line: str) -> bool:
            return bool(num_steps) and last in line

        done = run(command, seconds, self.machine.environment, is_enough)
        return Result(done, output)


class Result:
    """What a run has written into its folder."""

    def __init__(self, done: Done, output: Path):
        self.done, self.output = done, output
        self.steps = [line for line in json_lines(output / "metrics.jsonl") if "loss" in line]
        report = output / "report.json"
        self.report = json.loads(report.read_text()) if report.exists() else {}

    def losses(self) -> list:
        return [step["loss"] for step in self.steps]

    def step_seconds(self) -> float:
        """The median, without the first three steps, in which libraries choose their kernels."""
        times = [step["step_ms"] / 1000 for step in self.steps]
        return statistics.median(times[3:] or times) if times else float("nan")

    def peak_bytes(self) -> int:
        return max((step["peak_memory_bytes"] for step in self.steps), default=0)

    def planned_bytes(self) -> int:
        return self.report.get("plan", {}).get("peak_bytes", 0)

    def reason(self) -> str:
        """Why there are fewer steps than expected: the last error that the run has printed."""
        lines = [line.strip() for line in self.done.text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["no output"])[-1][:300]


def json_lines(path: Path) -> list:
    """The whole lines of a file that may still grow."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines
