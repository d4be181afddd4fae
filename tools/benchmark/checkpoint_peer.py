"""Measures torch.distributed.checkpoint on the shards of chassis-checkpoint: DIR MIB, under torchrun. Prints JSON."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

MIB = 1 << 20


def status_mib(key: str) -> float:
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    folder, num_bytes = sys.argv[1], int(sys.argv[2]) * MIB
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sizes = {"embed": num_bytes // 8}
    sizes |= {f"layer.{at // MIB}": 32 * MIB for at in range(num_bytes // 8, num_bytes, 32 * MIB)}

    def sharded(size):
        values = torch.arange(size // 4, dtype=torch.float32).remainder_(9973)
        return distribute_tensor(values.view(-1, 1024), mesh, [Shard(0)])

    state = {name: sharded(size) for name, size in sizes.items()}
    out = {"bytes": sum(sizes.values())}

    def measured(name, work):
        dist.barrier()
        before = status_mib("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")
        start = time.perf_counter()
        work()
        dist.barrier()
        mine = torch.tensor([time.perf_counter() - start, status_mib("VmHWM") - before], dtype=torch.float64)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        out[f"{name}_s"], out[f"{name}_mib"] = mine.tolist()

    measured("save", lambda: dcp.save(state, checkpoint_id=folder))
    if dist.get_rank() == 0:
        os.sync()
        open("/proc/sys/vm/drop_caches", "w").write("1")
    for name in ("load", "warm_load"):
        measured(name, lambda: dcp.load(state, checkpoint_id=folder))
    if dist.get_rank() == 0:
        print(json.dumps(out), flush=True)
    os._exit(0)


main()
