/* chassis.memory/1: scratch memory and its accounting, by category and by plugin. */
#ifndef CHASSIS_SERVICE_MEMORY_H
#define CHASSIS_SERVICE_MEMORY_H

#include "chassis/abi.h"
#include "chassis/status.h"

#define CHASSIS_MEMORY_ID "chassis.memory/1"

#define CHASSIS_MEMORY_OTHER 0u
#define CHASSIS_MEMORY_PARAMETERS 1u
#define CHASSIS_MEMORY_GRADIENTS 2u
#define CHASSIS_MEMORY_OPTIMIZER 3u
#define CHASSIS_MEMORY_ACTIVATIONS 4u
#define CHASSIS_MEMORY_WORKSPACE 5u
#define CHASSIS_MEMORY_COMMUNICATION 6u
#define CHASSIS_MEMORY_CHECKPOINT 7u
#define CHASSIS_MEMORY_DATA 8u
#define CHASSIS_MEMORY_LOGITS 9u   /* values over the vocabulary, and what computes them */
#define CHASSIS_MEMORY_GATHERED 10u /* whole parameters that a strategy will free */
#define CHASSIS_MEMORY_NUM_CATEGORIES 11u

#define CHASSIS_MEMORY_PINNED 1u

typedef struct chassis_memory {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [any] Scratch memory on the CPU, 64-byte aligned, counted as WORKSPACE of this plugin; release it with free. */
  chassis_status_t* (*alloc)(const struct chassis_memory* m, uint64_t bytes, CHASSIS_OWNED void** out);
  void (*free)(const struct chassis_memory* m, CHASSIS_STOLEN void* data);
  /* [any] Live and peak bytes of one category over the process. */
  void (*usage)(const struct chassis_memory* m, uint32_t category, uint64_t* live_bytes, uint64_t* peak_bytes);
  /* [step] As alloc, on any device, for use on its current stream; with PINNED, page-locked host memory that this CUDA
   * device copies from and to without staging. Release it with free_on. */
  chassis_status_t* (*alloc_on)(const struct chassis_memory* m, uint32_t device_type, int32_t device_index,
                                uint32_t flags, uint64_t bytes, CHASSIS_OWNED void** out);
  /* NULL is allowed. */
  void (*free_on)(const struct chassis_memory* m, CHASSIS_STOLEN void* data);
} chassis_memory_t;
#define CHASSIS_MEMORY_V1_SIZE 56u

#endif
