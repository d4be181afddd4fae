"""The stages of `tools/gpu-check --speed`, most valuable first. Each yields rows: (name, state, figures)."""
import json
import os
import re
import statistics
import time

from gpu_check.machine import ROOT, Machine
from gpu_check.report import Deadline, Missing, last_line, run
from gpu_check.training import BNB4, LORA, Training, llama

import light

SPEED_SECONDS = 300
RANK = 16  # of LORA


class Case:
    """A training that chassis and its peers do: `kind` is that of tools/benchmark/peer.py."""

    def __init__(self, name: str, kind: str, model: dict, length: int, rows: int, more: str, rank: int,
                 linear_bytes: float):
        self.name, self.kind, self.model, self.length, self.rows, self.more = name, kind, model, length, rows, more
        self.rank, self.linear_bytes = rank, linear_bytes
        self.training, self.rate = None, None  # tokens per second of chassis

    def flops(self) -> float:
        return light.flops_per_token(self.model, self.length, self.rank) * self.length * self.rows

    def num_bytes(self) -> float:
        return light.bytes_per_step(self.model, 2.0, self.rank, self.linear_bytes)


def cases(is_rehearsal: bool) -> list:
    """A model of 0.5B parameters, and 8 layers of one of 8B. A 4-bit weight has half a byte, and a share of a scale."""
    half = llama(24, 896, 4864, 14, 2, 151936, 2048, tied=True)
    layers = llama(8, 4096, 14336, 32, 8, 128256, 2048)
    length, rows, few = 2048, 4, 2
    if is_rehearsal:
        half = layers = llama(2, 128, 384, 4, 2, 512, 64)
        length, rows, few = 64, 2, 2
    return [Case("full training", "eager", half, length, rows, "", 0, 0.0),
            Case("LoRA", "peft", layers, length, few, LORA, RANK, 0.0),
            Case("LoRA on 4 bits", "qlora", layers, length, few, LORA + BNB4, RANK, 0.5 + 1 / 64)]


class Speed:
    def __init__(self, machine: Machine, is_rehearsal: bool):
        self.machine, self.is_rehearsal = machine, is_rehearsal
        self.cases = cases(is_rehearsal)
        self.num_steps = 6 if is_rehearsal else 14
        self.limits = None

    def stages(self) -> list:
        """(name, seconds, function of a deadline)."""
        ours = [(case.name, 60, lambda deadline, case=case: self.train(case, deadline)) for case in self.cases]
        return [("limits", 40, self.measure_limits), *ours, ("kernels", 30, self.measure_kernels),
                ("PyTorch, eager", 90, lambda deadline: self.run_peers("", deadline)),
                ("PyTorch, compiled", 150, lambda deadline: self.run_peers("-compile", deadline))]

    def measure_limits(self, deadline: Deadline):
        self.machine.require_torch()
        command = [self.machine.python, ROOT / "tools/benchmark/torch_limits.py", self.machine.device,
                   *(["tiny"] if self.is_rehearsal else [])]
        done = run(command, deadline.left(), self.machine.environment)
        if done.code != 0:
            yield "products and copy", "cut off" if done.cut_off else "failed", {"reason": last_line(done.text)}
            return
        self.limits = json.loads(last_json_line(done.text))
        yield "products and copy", "measured", {
            "fp32_tflops": self.limits["product_flops"]["fp32"] / 1e12,
            "bf16_tflops": self.limits["product_flops"]["bf16"] / 1e12,
            "copy_gb_per_s": self.limits["copy_bytes_per_s"] / 1e9, "torch": self.limits["torch"]}

    def figures(self, case: Case, seconds: float, peak_bytes) -> dict:
        """Of steps that take these seconds."""
        out = {"tokens_per_s": case.length * case.rows / seconds, "step_ms": seconds * 1000, "peak_bytes": peak_bytes,
               "flops_per_step": case.flops(), "bytes_per_step": case.num_bytes()}
        if self.limits:
            out["light_percent"] = light.percent(case.flops(), case.num_bytes(), seconds,
                                                 self.limits["product_flops"]["bf16"], self.limits["copy_bytes_per_s"])
        return out

    def train(self, case: Case, deadline: Deadline):
        begin = time.monotonic()
        # The steps after the measured ones are never taken.
        case.training = Training(self.machine, case.kind, case.model, case.length, case.rows, self.num_steps + 20,
                                 case.more, num_rows=case.rows * self.num_steps)
        result = case.training.start("chassis", deadline.left(), "precision.compute=bf16", num_steps=self.num_steps)
        if len(result.steps) < 4:
            yield "chassis", "cut off" if result.done.cut_off else "failed", {"reason": result.reason()}
            return
        figures = self.figures(case, result.step_seconds(), result.peak_bytes())
        case.rate = figures["tokens_per_s"]
        yield "chassis", "measured", {**figures, "steps": len(result.steps),
                                      "seconds_in_all": round(time.monotonic() - begin, 1)}

    def measure_kernels(self, deadline: Deadline):
        program = self.machine.require_tests()["bandwidth"]
        if program is None:
            raise Missing("chassis-kernels is not among --tests")
        done = run([program, *(["tiny"] if self.is_rehearsal else [])], deadline.left(), self.machine.environment)
        for line in done.text.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                figures = {"gb_per_s": found["bytes"] / found["seconds"] / 1e9, "microseconds": found["seconds"] * 1e6}
                if self.limits:
                    figures["copy_percent"] = 100 * found["bytes"] / found["seconds"] / self.limits["copy_bytes_per_s"]
                yield found["kernel"], "measured", figures
        if done.code != 0:
            yield "chassis-kernels", "cut off" if done.cut_off else "failed", {"reason": last_line(done.text)}

    def run_peers(self, suffix: str, deadline: Deadline):
        """Each case gets an equal share of the time that is left, so that one slow start does not take all of it."""
        self.machine.require_torch()
        for i, case in enumerate(self.cases):
            if case.training is None:
                yield case.name, "cut off", {"reason": "its data was not written"}
                continue
            kind = {"eager": "eager", "eager-compile": "compile"}.get(case.kind + suffix, case.kind + suffix)
            yield (case.name, *self.run_peer(case, kind, deadline.left() / (len(self.cases) - i)))

    def run_peer(self, case: Case, kind: str, seconds: float):
        ends, peaks = [], []

        def each_line(line: str) -> bool:
            if re.match(r"STEP \d+ ", line):
                ends.append(time.monotonic())
            if found := re.match(r"PEAK (\d+)", line):
                peaks.append(int(found[1]))
            return bool(peaks)

        command = [self.machine.python, ROOT / "tools/benchmark/peer.py", case.training.folder, str(self.num_steps),
                   str(len(os.sched_getaffinity(0))), kind, "bf16", self.machine.device.split(":")[0]]
        done = run(command, seconds, self.machine.environment, each_line)
        times = [b - a for a, b in zip(ends, ends[1:])][2:]
        if len(times) < 2:
            state = "missing" if "ModuleNotFoundError" in done.text else "cut off" if done.cut_off else "failed"
            return state, {"reason": last_line(done.text)}
        figures = self.figures(case, statistics.median(times), peaks[0] if peaks else None)
        if case.rate:
            figures["chassis_ratio"] = case.rate / figures["tokens_per_s"]
        return "measured", {**figures, "steps": len(ends)}


def last_json_line(text: str) -> str:
    return [line for line in text.splitlines() if line.startswith("{")][-1]
