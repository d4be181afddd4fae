/* The host as a plugin sees it: services by name, and functions to report errors. */
#ifndef CHASSIS_HOST_H
#define CHASSIS_HOST_H

#include "chassis/abi.h"
#include "chassis/status.h"

/* One per plugin instance; lives as long as the instance. Services are tables named "chassis.<name>/<rev>", see
 * chassis/service/. */
typedef struct chassis_host {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor; /* as negotiated: min(host, plugin), not the host's own */
  void* impl;

  /* [any] The service table, or NULL if this host does not have it. Valid as long as the host pointer. */
  const void* (*get_service)(const struct chassis_host* host, chassis_str_t id);

  /* [any] A new status. The message is copied; cause may be NULL and is stolen. Never fails. */
  CHASSIS_OWNED chassis_status_t* (*status_new)(const struct chassis_host* host, int32_t code, chassis_str_t message,
                                                CHASSIS_STOLEN chassis_status_t* cause);
  /* [any] Attach a fact, such as ("tensor", "lm_head.weight"). Both are copied. */
  void (*status_add)(chassis_status_t* status, chassis_str_t key, chassis_str_t value);
  /* [any] CHASSIS_OK for NULL. */
  int32_t (*status_code)(const chassis_status_t* status);
  /* [any] Message with facts and causes; borrowed until the status is released. */
  chassis_str_t (*status_message)(const chassis_status_t* status);
  /* [any] NULL is allowed. */
  void (*status_release)(CHASSIS_STOLEN chassis_status_t* status);
} chassis_host_t;
#define CHASSIS_HOST_V1_SIZE 64u

#endif
