/* chassis.members/1: instances of other plugins' members, for a member that wraps one of its own kind. */
#ifndef CHASSIS_SERVICE_MEMBERS_H
#define CHASSIS_SERVICE_MEMBERS_H

#include "chassis/plugin.h"

#define CHASSIS_MEMBERS_ID "chassis.members/1"

typedef struct chassis_members {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [control] A new instance of the named member, prepared and active. `options` is a JSON object of the options that
   * differ from their defaults, or empty; they are checked like those in a TOML table. The caller calls only its
   * interface, whose table may be of an older minor. The host owns the instance; it ends with close or with the
   * caller's instance. NOT_FOUND lists the available members; members that open each other in a cycle are refused. */
  chassis_status_t* (*open)(const struct chassis_members* s, chassis_str_t kind, chassis_str_t id,
                            chassis_str_t options, chassis_instance_t** out);
  /* [control] NULL is allowed. */
  void (*close)(const struct chassis_members* s, chassis_instance_t* instance);
} chassis_members_t;
#define CHASSIS_MEMBERS_V1_SIZE 32u

#endif
