/* chassis.parallel/1, kind "parallel": a strategy that divides training over ranks. It says which dims of the
 * computation are divided, where the shards of every parameter live and, on events from the executor, when whole
 * tensors are gathered, freed and reduced. The host moves the bytes (chassis_shards_t) and inserts the collectives, so
 * a strategy is only policy, and every strategy gives the same numbers. */
#ifndef CHASSIS_KIND_PARALLEL_H
#define CHASSIS_KIND_PARALLEL_H

#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_PARALLEL_ID "chassis.parallel/1"

typedef struct chassis_mesh_axis {
  chassis_str_t name; /* "dp_shard" */
  uint32_t size;
  uint32_t rank;      /* this rank's coordinate */
} chassis_mesh_axis_t;

/* A parameter of the recorded program; everything below refers to it by its index. */
typedef struct chassis_parallel_parameter {
  uint32_t struct_size;
  uint32_t num_dims;
  const int64_t* shape;  /* whole, as ops read it on this rank; already divided by strategies earlier in the stack */
  chassis_str_t name;
  int64_t num_elements;
  uint32_t trainable;
  uint32_t num_units;    /* how many units read it; more than one if it is tied */
  const uint32_t* units; /* ascending, in order of forward */
} chassis_parallel_parameter_t;
#define CHASSIS_PARALLEL_PARAMETER_V1_SIZE 56u

/* Units that a rank runs as one pipeline stage: ascending in forward, descending in backward. */
typedef struct chassis_chunk {
  uint32_t first_unit;
  uint32_t end_unit; /* one past the last */
  uint32_t stage;    /* 0 has the first units of the model */
  uint32_t reserved0;
} chassis_chunk_t;

/* The units and parameters to divide: those of the pipeline stages on this rank, numbered from 0; without a pipeline,
 * all of them. The same on every rank with the same stages, except for the axis ranks; borrowed until the instance is
 * destroyed. */
typedef struct chassis_parallel_problem {
  uint32_t struct_size;
  uint32_t num_axes;
  const chassis_mesh_axis_t* axes; /* of the whole mesh, sizes of 1 included */
  uint32_t num_parameters;
  uint32_t num_units;
  const chassis_parallel_parameter_t* const* parameters; /* in order of first use */
  const chassis_str_t* unit_names;                       /* "layers.3" */
  uint32_t compute_dtype;
  uint32_t reduce_dtype;     /* [precision] reduce */
  uint32_t device_type;
  uint32_t num_microbatches; /* of a step */
  /* A rank runs its chunks in turn, each for one micro-batch at a time; other forwards may come between a
   * forward and its backward. Without a pipeline there is one chunk. */
  uint32_t num_chunks;
  uint32_t num_stages;
  const chassis_chunk_t* chunks; /* ascending */
} chassis_parallel_problem_t;
#define CHASSIS_PARALLEL_PROBLEM_V1_SIZE 72u

#define CHASSIS_SHARD_REPLICATE 1u  /* every rank stores it whole */
#define CHASSIS_SHARD_DIM 2u /* chunks of ceil(size / N) of one dim, as torch.chunk and FSDP2 cut; may be empty */
#define CHASSIS_SHARD_FLAT 3u /* ceil(num_elements / N) consecutive elements per rank, the last ones padded (ZeRO) */

/* How a parameter is stored: fp32 master, optimizer states and reduced gradient have this shape. */
typedef struct chassis_shard_rule {
  uint32_t struct_size;
  uint32_t parameter;
  uint32_t kind;           /* CHASSIS_SHARD_… */
  uint32_t dim;            /* for CHASSIS_SHARD_DIM; only dim 0 so far */
  uint32_t num_axes;       /* joined, the first varies slowest */
  uint32_t resident;       /* 1: the whole tensor also stays between uses (ZeRO 1 and 2, small parameters of 3) */
  const chassis_str_t* axes;
  uint32_t gather_dtype; /* sent when the parameter is gathered; 0: the compute dtype */
  uint32_t reduce_dtype; /* sent when its gradient is reduced; 0: that of the problem */
  uint32_t offload; /* 1: shard, reduced gradient and optimizer states are in host memory, where the optimizer steps */
  uint32_t pin_memory; /* 1: page-locks the offloaded memory that CUDA copies from or to; no effect elsewhere */
} chassis_shard_rule_t;
#define CHASSIS_SHARD_RULE_V1_SIZE 48u

/* A named dim of the recorded program, of its parameters and of the values that ops compute. */
typedef struct chassis_dim_size {
  chassis_str_t name; /* "heads", "ffn" */
  int64_t size;
} chassis_dim_size_t;

/* The computation that a strategy may divide. The same on every rank, except for the axis ranks; borrowed. */
typedef struct chassis_division_problem {
  uint32_t struct_size;
  uint32_t num_axes;
  const chassis_mesh_axis_t* axes; /* of the whole mesh, sizes of 1 included */
  const chassis_dim_size_t* dims;  /* of fixed size, so without B, T and bounded ones */
  uint64_t num_dims;
} chassis_division_problem_t;
#define CHASSIS_DIVISION_PROBLEM_V1_SIZE 32u

#define CHASSIS_DIVIDE_PAD 1u /* the last ranks of an uneven division are padded; without it, it is refused */

/* The ways in which attention sees the positions of other ranks. */
#define CHASSIS_CONTEXT_ALL_TO_ALL 1u /* each rank has all positions of some heads (Ulysses, Jacobs et al. 2023) */
#define CHASSIS_CONTEXT_GATHER 2u     /* each rank gathers all keys and values for its own queries */
/* Keys and values pass from rank to rank (Liu et al. 2023). Each rank has two pieces of a row, one from its
 * start and one from its end, so that all ranks compute equally much under a causal mask. */
#define CHASSIS_CONTEXT_RING 3u

/* The values are cut into as many chunks as there are ranks. The chunks pass from rank to rank; one travels
 * while another is computed (Wang et al. 2023). */
#define CHASSIS_OVERLAP_RING 1u

/* Receives the results of divide(). All functions return a status for the strategy to return. */
typedef struct chassis_division_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Every parameter and value with this dim is divided along the axis, "tp": each of its N ranks has size / N
   * consecutive indices, and the host inserts the collectives that keep the results unchanged. The strategy thereby
   * serves the axis; it needs no claim(). Along "ep", which also divides the batch, only parameters are divided; so
   * far, a program with an op that reads one is refused. */
  chassis_status_t* (*divide)(const struct chassis_division_sink* s, chassis_str_t dim, chassis_str_t axis,
                              uint32_t flags);
  /* Values that no dim divides are divided along T (sequence parallelism, Korthikanti et al. 2022). */
  chassis_status_t* (*sequence_parallel)(const struct chassis_division_sink* s, chassis_str_t axis);
  /* Every value is divided along T over the axis, "cp", and no parameter is. `mode` is CHASSIS_CONTEXT_….
   * The strategy thereby serves the axis. */
  chassis_status_t* (*context_parallel)(const struct chassis_division_sink* s, chassis_str_t axis, uint32_t mode);
  /* The gathers before products and the scatters after them, which sequence_parallel needs, overlap with the
   * products. `how` is CHASSIS_OVERLAP_…; only with sequence_parallel of the same axis. */
  chassis_status_t* (*overlap)(const struct chassis_division_sink* s, chassis_str_t axis, uint32_t how);
} chassis_division_sink_t;
#define CHASSIS_DIVISION_SINK_V1_SIZE 48u

/* The units that a strategy may divide into the stages of a pipeline. The same on every rank, except for the axis
 * ranks; the answer must be the same, too. Borrowed. */
typedef struct chassis_stage_problem {
  uint32_t struct_size;
  uint32_t num_axes;
  const chassis_mesh_axis_t* axes; /* of the whole mesh, sizes of 1 included */
  uint32_t num_units;
  uint32_t num_microbatches; /* of a step; 0: nothing is trained, so that only the places of stages matter */
  const chassis_str_t* unit_names;
  const double* unit_costs; /* operations of products in forward and backward, per token; an embedding has 0 */
  uint32_t first_layer;     /* units [first_layer, end_layer) are the layers: the longest chain */
  uint32_t end_layer;
} chassis_stage_problem_t;
#define CHASSIS_STAGE_PROBLEM_V1_SIZE 48u

#define CHASSIS_WORK_FORWARD 1u
#define CHASSIS_WORK_BACKWARD 2u        /* gradients of inputs and of parameters */
#define CHASSIS_WORK_BACKWARD_INPUTS 3u /* only of inputs, which the previous stage waits for; the others later */
#define CHASSIS_WORK_BACKWARD_PARAMS 4u

/* An entry of a rank's schedule. */
typedef struct chassis_work {
  uint32_t kind; /* CHASSIS_WORK_… */
  uint32_t chunk;
  uint32_t microbatch;
} chassis_work_t;

/* Receives the results of stages(). The host proves a schedule before it is used: that every stage computes every
 * micro-batch, and that there is no deadlock. All functions return a status for the strategy to return. */
typedef struct chassis_stage_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* A schedule that the host knows: "gpipe", "1f1b", "interleaved", "zb_h1", "zbv". It determines which ranks of the
   * axis, "pp", the stages lie on; each rank has `num_chunks` of them: 2 for zbv, 2 or more for interleaved, else 1.
   * `group_size`: the number of micro-batches that a chunk of interleaved runs before the next chunk does; 0: the
   * number of ranks. */
  chassis_status_t* (*named)(const struct chassis_stage_sink* s, chassis_str_t axis, chassis_str_t schedule,
                             uint32_t num_chunks, uint32_t group_size);
  /* Alternatively, a schedule as text in the format of torch.distributed.pipelining ("compute_only"); `origin` goes
   * into messages. */
  chassis_status_t* (*csv)(const struct chassis_stage_sink* s, chassis_str_t axis, chassis_str_t text,
                           chassis_str_t origin);
  /* Alternatively, a schedule of the strategy's own: stage s lies on rank ranks[s] of the axis, whose k-th stage is its
   * chunk k, and rank r runs the num_works[r] entries of works[r] in order. Every rank has a stage. Every stage has,
   * for each micro-batch from 0 on, a FORWARD and then a BACKWARD, or a BACKWARD_INPUTS and then a BACKWARD_PARAMS. A
   * rank takes what another rank sends in the order of sending. If nothing is trained, the lists may be empty. */
  chassis_status_t* (*lists)(const struct chassis_stage_sink* s, chassis_str_t axis, const uint32_t* ranks,
                             uint32_t num_stages, const chassis_work_t* const* works, const uint32_t* num_works);
  /* The number of layers of each stage; units before and after the layers belong to the first and the last stage. If it
   * is not called, the host divides all units so that the costliest stage costs least. */
  chassis_status_t* (*layers)(const struct chassis_stage_sink* s, const int64_t* layers_per_stage, uint32_t num_stages);
} chassis_stage_sink_t;
#define CHASSIS_STAGE_SINK_V1_SIZE 48u

/* Receives the results of resolve(). Both functions return a status for the strategy to return. */
typedef struct chassis_parallel_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* This strategy serves the axis, "dp_replicate", "dp_shard" or "ep": the batch is divided along it and gradients are
   * summed over it. Each axis has exactly one strategy. Where another strategy divides positions (context_parallel),
   * the host adds its axis to those along which parameters are divided and gradients summed. Along "ep", the host
   * leaves out parameters with a dim that is divided along it. */
  chassis_status_t* (*claim)(const struct chassis_parallel_sink* s, chassis_str_t axis);
  /* Called once for each parameter, by exactly one strategy of the stack; rule is borrowed. In a stack that only
   * divides the computation, no strategy places parameters: each rank stores what the divisions leave to it. */
  chassis_status_t* (*place)(const struct chassis_parallel_sink* s, const chassis_shard_rule_t* rule);
} chassis_parallel_sink_t;
#define CHASSIS_PARALLEL_SINK_V1_SIZE 32u

#define CHASSIS_REDUCE_KEEP 1u /* sums stay per replica for now: the all_reduce over the other axes comes later */

/* The operations that the host offers a strategy. All [step][all-ranks]; only the two waits block. `name` goes into
 * messages and metrics. The strategy returns errors unchanged. */
typedef struct chassis_shards {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Adds one use of each: those that are neither whole nor being gathered are gathered by one collective. */
  chassis_status_t* (*gather)(const struct chassis_shards* s, const uint32_t* parameters, uint32_t num_parameters,
                              chassis_str_t name);
  /* Blocks until they are whole and may be read. */
  chassis_status_t* (*wait_gathered)(const struct chassis_shards* s, const uint32_t* parameters,
                                     uint32_t num_parameters);
  /* Removes one use of each; the last one frees what is not resident. */
  chassis_status_t* (*release)(const struct chassis_shards* s, const uint32_t* parameters, uint32_t num_parameters);
  /* As release, but a piece of the whole stays, so that the next gather involves only `ways` neighbouring ranks; ways
   * divides the number of ranks that share the parameter. */
  chassis_status_t* (*shrink)(const struct chassis_shards* s, const uint32_t* parameters, uint32_t num_parameters,
                              uint32_t ways);
  /* Sums the whole gradients over all data-parallel ranks, adds the sum to the shards' gradients, by one collective per
   * dtype, and frees the whole gradients. A gradient that was not written counts as zero. */
  chassis_status_t* (*reduce)(const struct chassis_shards* s, const uint32_t* parameters, uint32_t num_parameters,
                              uint32_t flags, chassis_str_t name);
  /* Blocks until their reduced gradients may be read. */
  chassis_status_t* (*wait_reduced)(const struct chassis_shards* s, const uint32_t* parameters,
                                    uint32_t num_parameters);
  /* [any] 1 if whole and readable. */
  int32_t (*is_whole)(const struct chassis_shards* s, uint32_t parameter);
  /* [any] Bytes of whole, non-resident tensors that are gathered now. */
  uint64_t (*gathered_bytes)(const struct chassis_shards* s);
} chassis_shards_t;
#define CHASSIS_SHARDS_V1_SIZE 80u

#define CHASSIS_EVENT_RECOMPUTE 1u       /* a forward that is run again for its backward */
/* For a backward that computes gradients of parameters: it is the last one that its chunk runs in the step. */
#define CHASSIS_EVENT_LAST_MICROBATCH 2u
#define CHASSIS_EVENT_TRAINING 4u        /* a backward will come; unset in evaluation and generation */
/* For a backward in two parts: this one computes only gradients of inputs, or only those of parameters. */
#define CHASSIS_EVENT_INPUTS_ONLY 8u
#define CHASSIS_EVENT_PARAMS_ONLY 16u

/* Setting the option to this value may save memory at the cost of time; results stay the same. */
typedef struct chassis_saving {
  chassis_str_t option;
  chassis_str_t value; /* JSON: "3", "\"cpu\"" */
} chassis_saving_t;

/* [step][all-ranks] Each event comes exactly once for each run of a unit. A chunk runs its units in ascending order in
 * forward and in descending order in backward. Events before a unit go through the stack in list order, those after it
 * in reverse. Any of them may be NULL. */
typedef struct chassis_parallel {
  uint32_t struct_size;
  uint32_t num_savings;
  /* Read from the first strategy in the stack: the axis that gets all ranks that [mesh] leaves over, unless the user
   * names another. Static text. */
  chassis_str_t home_axis;
  /* [control] Claims axes and places parameters, or refuses with a reason. Allocates nothing. May be called again, for
   * plans and for the stages of other ranks: the last call counts. */
  chassis_status_t* (*resolve)(struct chassis_instance* self, const chassis_parallel_problem_t* problem,
                               const chassis_parallel_sink_t* sink);
  /* [control] Before the first event; `shards` lives as long as the instance is active. */
  chassis_status_t* (*bind)(struct chassis_instance* self, const chassis_shards_t* shards);
  /* When it returns, the unit's parameters are whole. */
  chassis_status_t* (*pre_forward)(struct chassis_instance* self, uint32_t unit, uint32_t flags);
  chassis_status_t* (*post_forward)(struct chassis_instance* self, uint32_t unit, uint32_t flags);
  /* When it returns, the unit's parameters are whole, also for PARAMS_ONLY. Units below the first one that trains
   * anything have no backward. A unit that is recomputed runs its forward between this and post_backward, only once if
   * the backward is split. */
  chassis_status_t* (*pre_backward)(struct chassis_instance* self, uint32_t unit, uint32_t flags);
  /* Not called in INPUTS_ONLY. No unit will add to this parameter's gradient again in this micro-batch. */
  chassis_status_t* (*grad_ready)(struct chassis_instance* self, uint32_t parameter, uint32_t flags);
  chassis_status_t* (*post_backward)(struct chassis_instance* self, uint32_t unit, uint32_t flags);
  /* After the last backward of a step: when it returns, every trained parameter's reduced gradient is complete. */
  chassis_status_t* (*finish_grads)(struct chassis_instance* self);
  /* After a load, after initialization and after every optimizer step: brings resident tensors up to date. */
  chassis_status_t* (*post_optimizer)(struct chassis_instance* self);
  /* At the end of every step and of every evaluation, before anything is saved: when it returns, only resident tensors
   * are whole. */
  chassis_status_t* (*drain)(struct chassis_instance* self);
  /* Static: the settings that a plan tries when memory does not suffice. */
  const chassis_saving_t* savings;
  /* [control] Before the program is compiled: says which dims of the computation are divided along which axes, or
   * refuses with a reason. Allocates nothing; may be called again. NULL: none. */
  chassis_status_t* (*divide)(struct chassis_instance* self, const chassis_division_problem_t* problem,
                              const chassis_division_sink_t* sink);
  /* [control] Before resolve: says how the units are divided into the stages of a pipeline and in which order ranks run
   * them, or refuses with a reason. Allocates nothing; may be called again. NULL: none. */
  chassis_status_t* (*stages)(struct chassis_instance* self, const chassis_stage_problem_t* problem,
                              const chassis_stage_sink_t* sink);
  /* [step] After drain: 1 while replicas of parameters may differ between the ranks of an axis that the
   * strategy serves, as between two syncs of local steps; the host then does not compare them. NULL: never. */
  int32_t (*replicas_differ)(struct chassis_instance* self, chassis_str_t axis);
} chassis_parallel_t;
#define CHASSIS_PARALLEL_V1_SIZE 136u

#endif
