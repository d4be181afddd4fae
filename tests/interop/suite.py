"""Shared by the interop tests: runs chassis on a configuration, counts checks and prints their measured errors."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
# The first call of MKL's vector math is not safe from several threads; see host/service/threads.hpp.
torch.sin(torch.ones(1))


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


class Suite:
    """The command line of a test, a folder for its files, and its verdict."""

    def __init__(self, doc):
        parser = argparse.ArgumentParser(description=doc)
        parser.add_argument("--chassis", required=True, help="the program")
        parser.add_argument("--dump-logits", help="the test executable dump_logits")
        parser.add_argument("--plugin-path", action="append", default=[])
        parser.add_argument("--attention", default="sdpa")
        parser.add_argument("--kernels", default="aten", help="separated by commas")
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--only", default="", help="cases whose name contains this")
        parser.add_argument("--keep", help="keep files in this folder")
        self.args = parser.parse_args()
        self._temporary = None if self.args.keep else tempfile.TemporaryDirectory(prefix="chassis-interop-")
        self.folder = pathlib.Path(self.args.keep or self._temporary.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.passed, self.failed = 0, []

    # --- verdict ------------------------------------------------------------------------------------------------

    def check(self, what, holds, detail=""):
        if holds:
            self.passed += 1
        else:
            self.failed.append(what)
        print(f"{'ok  ' if holds else 'FAIL'} {what}{': ' + detail if detail else ''}", flush=True)

    def at_most(self, what, value, limit, detail=""):
        """On a GPU the limit is at least 1e-4, since sums run in another order."""
        if self.args.device != "cpu":
            limit = max(limit, 1e-4)
        self.check(what, bool(value <= limit), f"{value:.2e} <= {limit:.0e}{' (' + detail + ')' if detail else ''}")

    def close(self):
        if self.failed:
            print(f"{len(self.failed)} failed: " + "; ".join(self.failed))
        print(f"{self.passed} passed, {len(self.failed)} failed")
        sys.exit(1 if self.failed else 0)

    # --- chassis ------------------------------------------------------------------------------------------------

    def config(self, name, model, **tables):
        """Writes a configuration; `tables` are {table: {key: value}} merged over what every run needs; "__" is a dot."""
        merged = {
            "run": {"name": name, "output_dir": str(self.folder / (name + "-run")), "device": self.args.device,
                    "max_steps": 1},
            "model": {"path": str(model)},
            "data.train": [{"path": str(self.folder / "tokens.jsonl"), "format": "tokens"}],
            "train": {"seq_len": 32},
            "optimizer": {"plugin": "adamw", "lr": 1e-3},
            "precision": {"compute": "fp32"},
            "attention": {"plugin": self.args.attention},
            # Computes the attention that sdpa refuses: capped scores.
            "kernels": {"plugins": self.args.kernels.split(",") + ["interval"] * (self.args.attention == "sdpa")},
        }
        for table, keys in tables.items():
            table = table.replace("__", ".")
            merged[table] = keys if isinstance(keys, list) else {**merged.get(table, {}), **keys}
        lines = ["schema_version = 1"]
        for table, keys in merged.items():
            for entry in keys if isinstance(keys, list) else [keys]:
                lines.append(f"[[{table}]]" if isinstance(keys, list) else f"[{table}]")
                lines += [f"{key} = {toml(value)}" for key, value in entry.items()]
        path = self.folder / (name + ".toml")
        path.write_text("\n".join(lines) + "\n")
        return path

    def run(self, *arguments, program=None, code=0):
        command = [program or self.args.chassis, *map(str, arguments)]
        for folder in self.args.plugin_path:
            command += ["--plugin-path", folder]
        result = subprocess.run(command, capture_output=True, timeout=500)
        if result.returncode != code:
            sys.stderr.buffer.write(result.stdout[-4000:] + result.stderr[-4000:])
            raise SystemExit(f"exit code {result.returncode}, expected {code}: {' '.join(command)}")
        return result.stdout

    def logits(self, config, input_ids, *overrides, positions=None, document_ids=None):
        """[B, T, vocab] by chassis, of the model directory that the configuration names; [B, labels] of a classifier."""
        ids = np.asarray(input_ids, dtype=np.int32)
        B, T = ids.shape
        positions = np.broadcast_to(np.arange(T), (B, T)) if positions is None else np.asarray(positions)
        document_ids = np.zeros((B, T)) if document_ids is None else np.asarray(document_ids)
        batch, out = self.folder / "batch.i32", self.folder / "logits.f32"
        with open(batch, "wb") as file:
            for part in (np.array([B, T]), ids, positions, document_ids):
                file.write(np.ascontiguousarray(part, dtype=np.int32).tobytes())
        self.run(config, batch, out, *overrides, program=self.args.dump_logits)
        values = torch.from_numpy(np.fromfile(out, dtype=np.float32).copy())
        return values.reshape(B, T, -1) if values.numel() % (B * T) == 0 else values.reshape(B, -1)


def metrics(run_directory):
    """The lines of metrics.jsonl that are steps."""
    lines = [json.loads(line) for line in open(os.path.join(run_directory, "metrics.jsonl"))]
    return [line for line in lines if "grad_norm" in line]


def error(ours, theirs):
    """The largest difference, absolute below 1 and relative above."""
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max().item()


def relative_l2(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-30)).item()
