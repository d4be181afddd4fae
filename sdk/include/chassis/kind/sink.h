/* chassis.sink/1, kind "sink": takes the metrics of a run, in addition to the console and metrics.jsonl. Members are
 * named in [log] sinks; rank 0 of a run has them. The host calls an instance from one thread of its own, never from the
 * thread of the step, so every function may block: a queue keeps what arrives meanwhile, and what it cannot hold is
 * dropped and counted. A status other than OK is shown once and counted; calls continue, and the run is not affected.
 *
 * Order: start, then scalars and texts in the order in which they arose, then finish, even if the run failed. If start
 * fails, nothing else is called. */
#ifndef CHASSIS_KIND_SINK_H
#define CHASSIS_KIND_SINK_H

#include "chassis/status.h"

#define CHASSIS_SINK_ID "chassis.sink/1"

/* The run as an HTML page, as `chassis report --html` writes it, made from the files of the run, so it has no charts
 * unless the sink jsonl is on. [any] Functions may be called from any thread and at the same time, from start until
 * finish returns; they read files, and take a few milliseconds. `write` gets the text in one or more pieces that are
 * borrowed for its call, before the function returns; it must not throw. Files that are absent or damaged are named on
 * the page; a file that cannot be read is an error. */
typedef struct chassis_run_page {
  uint32_t struct_size;
  uint32_t reserved0;
  void* context;
  /* The whole page, up to the record that the sink has now. With is_live = 1 the page requests "events" (server-sent
   * events: any message means that there is something new) and then "data?since=STEP", both relative to its own
   * address; with 0 it requests nothing, and can be kept as a file. */
  chassis_status_t* (*html)(void* context, uint32_t is_live, void (*write)(void* to, chassis_str_t text), void* to);
  /* JSON for "data?since=STEP", which only the page understands: what a page that has all steps up to `since` lacks.
   * since < 0 counts as 0. */
  chassis_status_t* (*data)(void* context, int64_t since, void (*write)(void* to, chassis_str_t text), void* to);
} chassis_run_page_t;
#define CHASSIS_RUN_PAGE_V1_SIZE 32u

/* All strings are UTF-8 and borrowed for the call. */
typedef struct chassis_sink_start {
  uint32_t struct_size;
  uint32_t reserved0;
  chassis_str_t run_name;
  chassis_str_t output_dir; /* of the run; it exists, and a sink's files belong in it */
  chassis_str_t config;     /* the resolved configuration, one JSON object */
  int64_t first_step;       /* the number of steps before the run; files may have later ones, which are void */
  int64_t max_steps;
  double time; /* in seconds since 1970, as below */
  const chassis_run_page_t* page; /* never NULL; the host's, until finish returns */
} chassis_sink_start_t;
#define CHASSIS_SINK_START_V1_SIZE 88u

/* Never grows. */
typedef struct chassis_scalar {
  chassis_str_t name; /* "loss", "grad_norm", "tokens_per_s", "comm/tp/all_reduce_bytes", "eval/NAME/loss" */
  double value;       /* may be an infinity or NaN */
} chassis_scalar_t;

/* The measurements of one step or one evaluation. No name occurs twice. */
typedef struct chassis_scalars {
  uint32_t struct_size;
  uint32_t num_scalars;
  int64_t step;
  double time;
  const chassis_scalar_t* scalars;
} chassis_scalars_t;
#define CHASSIS_SCALARS_V1_SIZE 32u

#define CHASSIS_TEXT_SAMPLE 1u     /* an answer of the model; name: "sample/1" */
#define CHASSIS_TEXT_CHECKPOINT 2u /* a checkpoint was saved; name: "checkpoint", text: its path */
#define CHASSIS_TEXT_WARNING 3u    /* name: "warning" */

typedef struct chassis_sink_text {
  uint32_t struct_size;
  uint32_t type; /* CHASSIS_TEXT_…; later hosts may have others */
  int64_t step;
  double time;
  chassis_str_t name;
  chassis_str_t text;
} chassis_sink_text_t;
#define CHASSIS_SINK_TEXT_V1_SIZE 56u

#define CHASSIS_RUN_DONE 1u    /* all steps were taken */
#define CHASSIS_RUN_STOPPED 2u /* by a signal, resumable */
#define CHASSIS_RUN_FAILED 3u

typedef struct chassis_sink_finish {
  uint32_t struct_size;
  uint32_t outcome; /* CHASSIS_RUN_… */
  int64_t step;     /* the last that was taken */
  double time;
  uint64_t num_dropped; /* scalars and texts that this instance did not get */
} chassis_sink_finish_t;
#define CHASSIS_SINK_FINISH_V1_SIZE 32u

typedef struct chassis_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [any] */
  chassis_status_t* (*start)(struct chassis_instance* self, const chassis_sink_start_t* start);
  /* [any] */
  chassis_status_t* (*scalars)(struct chassis_instance* self, const chassis_scalars_t* scalars);
  /* [any] NULL: texts are not wanted. */
  chassis_status_t* (*text)(struct chassis_instance* self, const chassis_sink_text_t* text);
  /* [any] Called when the queue is empty: what is buffered should become visible. NULL: nothing is buffered. */
  chassis_status_t* (*flush)(struct chassis_instance* self);
  /* [any] */
  chassis_status_t* (*finish)(struct chassis_instance* self, const chassis_sink_finish_t* finish);
} chassis_sink_t;
#define CHASSIS_SINK_V1_SIZE 48u

#endif
