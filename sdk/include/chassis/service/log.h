/* chassis.log/1: a plugin logs only here; the host adds its name to each line. */
#ifndef CHASSIS_SERVICE_LOG_H
#define CHASSIS_SERVICE_LOG_H

#include "chassis/abi.h"

#define CHASSIS_LOG_ID "chassis.log/1"

#define CHASSIS_LOG_DEBUG 1u
#define CHASSIS_LOG_INFO 2u
#define CHASSIS_LOG_WARN 3u
#define CHASSIS_LOG_ERROR 4u

typedef struct chassis_log {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [any] Non-zero if a message of this level would be shown. */
  uint32_t (*enabled)(const struct chassis_log* log, uint32_t level);
  /* [any] One line. */
  void (*write)(const struct chassis_log* log, uint32_t level, chassis_str_t message);
  /* [any] Reports that something was ignored, changed or dropped. Logged the first time, counted every time, shown in
   * the summary at the end of the run under `key`. */
  void (*count)(const struct chassis_log* log, chassis_str_t key, chassis_str_t message);
} chassis_log_t;
#define CHASSIS_LOG_V1_SIZE 40u

#endif
