"""The peer of tools/bench --prepare: HF datasets tokenises a .jsonl file with a fast tokenizer and keeps the ids.

    prepare_peer.py FOLDER DATA TOKENIZER WORKERS processes|threads

processes: map() in WORKERS processes with one thread each; threads: one process, in which the tokenizer's own threads
encode a batch. Prints a line of JSON: seconds from opening the file to the complete table, rows and tokens. The peak is
of all processes together, read by the caller.
"""
import json
import os
import sys
import time

folder, data, tokenizer_path, workers, kind = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = folder
os.environ["TOKENIZERS_PARALLELISM"] = "true" if kind == "threads" else "false"
os.environ["RAYON_NUM_THREADS"] = str(workers)

import datasets
from transformers import PreTrainedTokenizerFast

datasets.disable_progress_bars()
tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_path, eos_token="<|endoftext|>")
eos = tokenizer.eos_token_id


def encode(batch):
    return {"input_ids": [ids + [eos] for ids in tokenizer(batch["text"], return_attention_mask=False)["input_ids"]]}


if __name__ == "__main__":
    start = time.perf_counter()
    rows = datasets.load_dataset("json", data_files=data, split="train")
    table = rows.map(encode, batched=True, batch_size=1000, remove_columns=rows.column_names,
                     num_proc=workers if kind == "processes" else None)
    seconds = time.perf_counter() - start
    sample = table[0]["input_ids"]
    print(json.dumps({"seconds": seconds, "rows": len(table), "first_ids": sample[:8]}), flush=True)
