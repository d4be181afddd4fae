"""Traces of two ranks as Perfetto's trace processor reads them, alone and as one file. The processor is a program that
PyPI's perfetto downloads on first use; without it the files are checked against the rules of the format."""

import json
import collections

import numpy as np

import models
from suite import Suite, metrics

suite = Suite(__doc__)
folder = models.save(models.make(seed=7), suite.folder / "model")
random = np.random.default_rng(3)
rows = [{"input_ids": random.integers(0, 96, 40).tolist()} for _ in range(24)]
(suite.folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
config = suite.config("traces", folder, run={"max_steps": 4, "name": "traces", "device": suite.args.device,
                                             "output_dir": str(suite.folder / "run"), "threads": 1},
                      data={"cache_dir": str(suite.folder)}, export={"when": "never"},
                      train={"seq_len": 40, "micro_batch_size": 1, "global_batch_size": 4},
                      log={"trace": [2, 3]}, parallel=[{"plugin": "fsdp2"}])
suite.run("train", config, "--nproc", 2)
paths = [suite.folder / f"run/trace/rank-{rank}.json" for rank in range(2)]
traces = [json.loads(path.read_text()) for path in paths]
merged = suite.folder / "merged.json"
merged.write_text(json.dumps({"traceEvents": [event for trace in traces for event in trace["traceEvents"]]}))
sent = sum(value for step in metrics(suite.folder / "run")[1:3] for key, value in step.items()
           if key.startswith("comm/") and key.endswith("_bytes"))


def check_rules():
    """Rules of the Trace Event Format: required keys, types, and spans of a thread that nest."""
    for rank, trace in enumerate(traces):
        events = trace["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        suite.check(f"rank {rank}: phases", {event["ph"] for event in events} == {"M", "X"})
        suite.check(f"rank {rank}: keys", all(
            isinstance(span["name"], str) and isinstance(span["cat"], str) and span["pid"] == rank and
            isinstance(span["tid"], int) and isinstance(span["args"], dict) and
            isinstance(span["ts"], (int, float)) and span["dur"] >= 0 for span in spans), f"{len(spans)} spans")
        named = {event["tid"] for event in events if event["name"] == "thread_name"}
        suite.check(f"rank {rank}: threads have names", named == {span["tid"] for span in spans}, f"{len(named)} threads")
        by_thread = collections.defaultdict(list)
        for span in spans:
            begin = round(span["ts"] * 1000)
            by_thread[span["tid"]].append((begin, begin + round(span["dur"] * 1000)))
        nested = True
        for pairs in by_thread.values():
            open_spans = []
            for begin, end in sorted(pairs, key=lambda pair: (pair[0], -pair[1])):
                while open_spans and open_spans[-1] <= begin:
                    open_spans.pop()
                nested &= not open_spans or end <= open_spans[-1]
                open_spans.append(end)
        suite.check(f"rank {rank}: spans nest", nested)
    found = sum(event["args"]["bytes"] for event in traces[0]["traceEvents"]
                if event["ph"] == "X" and event["cat"] == "collectives")
    suite.check("bytes of collectives", found == sent, f"{found}")


def check_with(processor):
    def rows_of(query):
        return [tuple(row.__dict__.values()) for row in processor.query(query)]

    expected = sum(event["ph"] == "X" for trace in traces for event in trace["traceEvents"])
    count, shortest = rows_of("select count(*) as n, min(dur) as shortest from slice")[0]
    suite.check("perfetto: every span", count == expected, f"{count}")
    suite.check("perfetto: no span without an end", shortest >= 0)
    errors = rows_of("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    suite.check("perfetto: no errors", not errors, str(errors))
    processes = sorted(name for name, in rows_of("select name from process where name is not null"))
    suite.check("perfetto: processes", processes == ["rank 0", "rank 1"], str(processes))
    names = {name for name, in rows_of("select name from thread where name is not null")}
    suite.check("perfetto: tracks", {"steps", "data", "micro-batches", "units", "nodes", "optimizer"} <= names)
    found = rows_of("select sum(extract_arg(s.arg_set_id, 'args.bytes')) as bytes from slice s join thread_track t "
                    "on s.track_id = t.id join thread using (utid) join process using (upid) "
                    "where s.category = 'collectives' and process.name = 'rank 0'")[0][0]
    suite.check("perfetto: bytes of collectives", found == sent, f"{found}")


check_rules()
try:
    from perfetto.trace_processor import TraceProcessor

    processor = TraceProcessor(trace=str(merged))
except Exception as error:  # no package, or no network for the program
    print(f"perfetto's trace processor does not run here: {type(error).__name__}: {error}")
else:
    check_with(processor)
    processor.close()
suite.close()
