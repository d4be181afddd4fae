/* chassis.optimizer/1: how plugins before 0.6 offer an optimizer. Frozen; new plugins offer chassis.optimizer/2
 * (chassis/kind/optimizer.h). All parameters have the same states; the plugin does not learn the names of
 * parameters. */
#ifndef CHASSIS_KIND_OPTIMIZER_1_H
#define CHASSIS_KIND_OPTIMIZER_1_H

#include "chassis/kind/optimizer.h"

#define CHASSIS_OPTIMIZER_ID "chassis.optimizer/1"

typedef struct chassis_optimizer {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Static for the instance. */
  uint32_t (*num_states)(struct chassis_instance* self);
  /* [control] i < num_states; valid as long as the instance. */
  const chassis_state_desc_t* (*state)(struct chassis_instance* self, uint32_t i);
  /* [step] Same inputs give the same bits with any number of threads. */
  chassis_status_t* (*step)(struct chassis_instance* self, const chassis_optimizer_step_t* step);
  /* [control] Bytes of scratch for a step over tensors with these numbers of elements. NULL: none. */
  uint64_t (*workspace_bytes)(struct chassis_instance* self, const int64_t* num_elements, uint32_t num_tensors);
} chassis_optimizer_t;
#define CHASSIS_OPTIMIZER_V1_SIZE 40u

#endif
