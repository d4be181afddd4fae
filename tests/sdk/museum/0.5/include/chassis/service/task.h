/* chassis.task/1: the host's threads. A plugin uses neither OpenMP nor its own threads. */
#ifndef CHASSIS_SERVICE_TASK_H
#define CHASSIS_SERVICE_TASK_H

#include "chassis/abi.h"

#define CHASSIS_TASK_ID "chassis.task/1"

typedef struct chassis_task {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [any] How many chunks run at once. */
  uint32_t (*num_threads)(const struct chassis_task* t);
  /* [step] Calls body(context, begin, end) over disjoint chunks that cover [0, count), at least `grain` long except the
   * last, on LibTorch's intra-op threads; returns when all are done. The body must not fail or throw.
   * Chunk borders depend only on count, grain and num_threads, so results are repeatable. */
  void (*parallel_for)(const struct chassis_task* t, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end), void* context);
} chassis_task_t;
#define CHASSIS_TASK_V1_SIZE 32u

#endif
