"""The rows and the configuration of a run that tools/bench or tools/gpu-check measures."""
import json
from pathlib import Path


def write_rows(path: Path, num_rows: int, length: int, vocab: int) -> None:
    """Rows of exactly `length` tokens, so that packing gives every peer the same batches."""
    state = 12345
    with open(path, "w") as out:
        for _ in range(num_rows):
            ids = []
            for _ in range(length):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                ids.append((state >> 33) % vocab)
            out.write(json.dumps({"input_ids": ids}) + "\n")


def write_run(folder: Path, model: dict, seq_len: int, rows: int, steps: int, micro_rows: int, device: str = "cpu",
              threads=None, num_rows=None, more: str = "") -> None:
    """Writes bench.toml and its data into `folder`, and for other programs model.json and batch.json. Without `threads`
    chassis uses its default. `more` are further tables."""
    write_rows(folder / "tokens.jsonl", num_rows or rows * (steps + 1), seq_len, model["vocab_size"])
    config = ", ".join(f"{k} = {json.dumps(v)}" for k, v in model.items())
    (folder / "bench.toml").write_text(f"""schema_version = 1
[run]
name = "bench"
output_dir = "{folder}/run"
max_steps = {steps}
{f"threads = {threads}" if threads else ""}
device = "{device}"
[model]
plugin = "{model["model_type"]}"
config = {{ {config} }}
[data]
shuffle = false
cache_dir = "{folder}/cache"
[[data.train]]
path = "{folder}/tokens.jsonl"
format = "tokens"
[train]
seq_len = {seq_len}
micro_batch_size = {micro_rows}
global_batch_size = {rows}
[optimizer]
plugin = "adamw"
lr = 1e-4
weight_decay = 0.1
[checkpoint]
every_steps = 0
[export]
when = "never"
{more}""")
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "batch.json").write_text(json.dumps(dict(rows=rows, num_microbatches=rows // micro_rows)))
