"""Traces of two ranks as Perfetto's own trace processor reads them: each file alone, both at once as its page opens
several files, and both in one file. All spans are there as they were written, to the nanosecond, and a trace that is
wrong is found."""

import collections
import contextlib
import copy
import io
import json
import shutil
import sys
import tarfile
from decimal import Decimal

if not shutil.which("node"):
    print("skipped: Node is not installed, which runs Perfetto's trace processor")
    sys.exit(77)

import numpy as np

import models
from suite import Suite, metrics
from trace_processor import TraceProcessor

TRACKS = ["steps", "data", "micro-batches", "units", "nodes", "optimizer", "saves", "collectives of dp_shard"]
UNITS = ["embed", "layers.0", "layers.1", "layers.2", "head"]
SPANS = """
create perfetto table spans as
select s.id, s.parent_id, s.depth, s.track_id, process.name as process, thread.name as track, thread.tid, s.category,
  s.name, s.ts, s.dur, s.ts + s.dur as ends, extract_arg(s.arg_set_id, 'args.microbatch') as microbatch,
  extract_arg(s.arg_set_id, 'args.unit') as unit, extract_arg(s.arg_set_id, 'args.plugin') as plugin,
  extract_arg(s.arg_set_id, 'args.bytes') as bytes
from slice s join thread_track on s.track_id = thread_track.id join thread using (utid) join process using (upid)"""

suite = Suite(__doc__)


def run():
    """Two steps on two ranks, with a save, evaluations and recomputation: the text of each rank's file."""
    folder = models.save(models.make(seed=7), suite.folder / "model")
    random = np.random.default_rng(3)
    rows = [{"input_ids": random.integers(0, 96, 40).tolist()} for _ in range(24)]
    data = suite.folder / "tokens.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = suite.config("traces", folder, run={"max_steps": 4, "threads": 1, "output_dir": str(suite.folder / "run")},
                          data={"cache_dir": str(suite.folder)}, export={"when": "never"}, log={"trace": [2, 3]},
                          data__eval=[{"path": str(data), "format": "tokens", "name": "valid"}],
                          train={"seq_len": 40, "micro_batch_size": 1, "global_batch_size": 4},
                          eval={"every_steps": 2}, checkpoint={"every_steps": 2}, recompute={"mode": "full"},
                          parallel=[{"plugin": "fsdp2"}])
    suite.run("train", config, "--nproc", 2)
    return [(suite.folder / f"run/trace/rank-{rank}.json").read_bytes() for rank in range(2)]


def events_of(text):
    return json.loads(text, parse_float=Decimal)["traceEvents"]


def dump(events):
    return json.dumps({"traceEvents": events}, default=float).encode()


def in_a_tar(files):
    """As Perfetto's page gives several files to the trace processor."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, text in enumerate(files):
            member = tarfile.TarInfo(f"rank-{number}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


def written(events):
    """Spans, and names of their tracks, as the file has them."""
    names = {(event["name"], event["pid"], event["tid"]): event["args"]["name"]
             for event in events if event["ph"] == "M" and "name" in event["args"]}
    processes = {pid: name for (what, pid, _), name in names.items() if what == "process_name"}
    return collections.Counter(
        (processes[event["pid"]], names["thread_name", event["pid"], event["tid"]], event["cat"], event["name"],
         int(event["ts"] * 1000), int(event.get("dur", 0) * 1000),
         *map(event["args"].get, ("microbatch", "unit", "plugin", "bytes")))
        for event in events if event["ph"] == "X")


def faults_of(processor, events):
    """What the trace processor shows otherwise than `events`, and what no trace may have."""
    expected = written(events)
    found = collections.Counter(processor.rows(
        "select process, track, category, name, ts, dur, microbatch, unit, plugin, bytes from spans"))
    if found != expected:
        yield (f"{found.total()} spans of {expected.total()}; missing {list(expected - found)[:3]}, "
               f"instead {list(found - expected)[:3]}")
    for fault, query in {
        "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "not of a thread": "select name, ts from slice where id not in (select id from spans)",
        "ends before it begins": "select name, dur from spans where dur < 0",
        "not inside its parent": "select s.name, s.ts from spans s left join spans p on s.parent_id = p.id "
                                 "where s.depth != ifnull(p.depth + 1, 0) or s.track_id != p.track_id "
                                 "or s.ts < p.ts or s.ends > p.ends",
        "overlaps another": "select a.name, a.ts from spans a join spans b using (track_id) "
                            "where a.ts < b.ts and b.ts < a.ends and a.ends < b.ends",
    }.items():
        if rows := processor.rows(query):
            yield f"{fault}: {rows[:3]}"


def faults(content, events):
    try:
        with contextlib.closing(TraceProcessor(content)) as processor:
            processor.rows(SPANS)
            return list(faults_of(processor, events))
    except ValueError as error:
        return [str(error)]


def check_contents(processor, rank, sent):
    """What the run did is there, by name and category."""
    def check(what, query, expected):
        found = processor.rows(query)
        suite.check(f"rank {rank}: {what}", found == expected, "" if found == expected else str(found[:10]))

    def counts(columns, where):
        return f"select {columns}, count(*) as n from spans where {where} group by {columns} order by {columns}"

    tracks = [name for name, in processor.rows("select distinct track from spans order by tid")]
    suite.check(f"rank {rank}: tracks in order", [name for name in tracks if not name.endswith(")")] == TRACKS,
                ", ".join(tracks))
    check("steps and evaluations", "select name from spans where track = 'steps' order by ts",
          [("step 2",), ("evaluation",), ("step 3",)])
    check("data", counts("category, name", "track = 'data'"), [("data", "data", 2)])
    check("micro-batches", counts("name, microbatch", "track = 'micro-batches'"),
          [(phase, number, 2) for phase in ("backward", "forward") for number in range(2)])
    for phase in "forward", "backward":
        check(f"{phase} of units", counts("unit, name", f"track = 'units' and category = '{phase}'"),
              [(number, name, 4) for number, name in enumerate(UNITS)])
    check("recomputation inside the backward of its unit",
          "select p.category, p.name = s.name as same, count(*) > 0 as n from spans s left join spans p "
          "on s.parent_id = p.id where s.track = 'units' and s.category = 'recomputation' group by 1, 2",
          [("backward", 1, 1)])
    check("saves", "select count(*) > 0 as n from spans where track = 'saves' and name = 'save'", [(1,)])
    check("nodes have plugins",
          "select count(*) > 100 as n from spans where track = 'nodes' and plugin = 'aten'", [(1,)])
    for inner, outer, same in (("data", "steps", "true"), ("optimizer", "steps", "true"),
                               ("micro-batches", "steps", "true"),
                               ("units", "micro-batches", "o.microbatch = i.microbatch"),
                               ("nodes", "units", "o.microbatch = i.microbatch and o.unit = i.unit")):
        check(f"{inner} inside {outer}",
              f"select name, ts from spans i where i.category != 'evaluation' and i.track = '{inner}' and not exists "
              f"(select 1 from spans o where o.track = '{outer}' and {same} and o.ts <= i.ts and i.ends <= o.ends)", [])
    check("collectives in flight at the same time have a row each",
          "select name, ts from spans where category = 'collectives' and depth > 0", [])
    if rank == 0:
        check("bytes of collectives, as in metrics.jsonl",
              "select sum(bytes) as n from spans where category = 'collectives'", [(sent,)])


def broken(events):
    """Traces that are wrong, each in one thing."""
    def changed(what, change):
        out = copy.deepcopy(events)
        change(out, next(event for event in out if event["ph"] == "X" and event["name"] == "layers.1"))
        return what, dump(out), out

    yield changed("a span ends before it begins", lambda _, span: span.update(dur=-span["dur"]))
    yield changed("a span without a duration", lambda _, span: span.pop("dur"))
    yield changed("a span before time 0", lambda _, span: span.update(ts=-span["ts"]))
    yield changed("two spans overlap", lambda out, span: out.append({**span, "ts": span["ts"] + span["dur"] / 2}))
    whole = dump(events)
    yield "half of the text", whole[:len(whole) // 2], events
    yield "the text without its end", whole[:-2], events


files = run()
events = [events_of(text) for text in files]
sent = sum(value for step in metrics(suite.folder / "run")[1:3] for key, value in step.items()
           if key.startswith("comm/") and key.endswith("_bytes"))
for what, content, those in (("rank 0", files[0], events[0]), ("rank 1", files[1], events[1]),
                             ("both files at once", in_a_tar(files), sum(events, [])),
                             ("one file of both", dump(sum(events, [])), sum(events, []))):
    found = faults(content, those)
    suite.check(f"{what}: all spans, no faults", not found, "; ".join(found) or f"{written(those).total()} spans")
for rank, text in enumerate(files):
    with contextlib.closing(TraceProcessor(text)) as processor:
        processor.rows(SPANS)
        check_contents(processor, rank, sent)
suite.check("unbroken", not faults(dump(events[0]), events[0]))
for what, content, those in broken(events[0]):
    found = faults(content, those)
    suite.check(f"broken, {what}", bool(found), "; ".join(found)[:200])
suite.close()
