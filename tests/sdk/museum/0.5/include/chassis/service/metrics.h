/* chassis.metrics/1: scalars of the current step; every sink receives them as "<plugin>/<name>". */
#ifndef CHASSIS_SERVICE_METRICS_H
#define CHASSIS_SERVICE_METRICS_H

#include "chassis/abi.h"

#define CHASSIS_METRICS_ID "chassis.metrics/1"

typedef struct chassis_metrics {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [step] The last value of a step wins. */
  void (*set)(const struct chassis_metrics* m, chassis_str_t name, double value);
  /* [step] Adds to the step's value. */
  void (*add)(const struct chassis_metrics* m, chassis_str_t name, double value);
} chassis_metrics_t;
#define CHASSIS_METRICS_V1_SIZE 32u

#endif
