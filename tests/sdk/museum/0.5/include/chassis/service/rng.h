/* chassis.rng/1: randomness without state. A value depends only on the seed, a name and the element's index, so it is
 * the same under every sharding, thread count, order and recompute. Philox4x32-10 (Salmon et al., SC 2011). */
#ifndef CHASSIS_SERVICE_RNG_H
#define CHASSIS_SERVICE_RNG_H

#include "chassis/abi.h"

#define CHASSIS_RNG_ID "chassis.rng/1"

/* All [any]; element i of the stream (seed of the run, name) goes to out[i - begin], for begin <= i < begin + count. */
typedef struct chassis_rng {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Uniform in [0, 1), 24 bits. */
  void (*uniform)(const struct chassis_rng* r, chassis_str_t name, uint64_t begin, uint64_t count, float* out);
  /* Normal, mean 0, deviation 1, by Box–Muller. */
  void (*normal)(const struct chassis_rng* r, chassis_str_t name, uint64_t begin, uint64_t count, float* out);
} chassis_rng_t;
#define CHASSIS_RNG_V1_SIZE 32u

#endif
