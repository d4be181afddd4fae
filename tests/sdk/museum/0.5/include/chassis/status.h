/* Errors that cross the boundary. A status is allocated by the host, so it outlives the plugin that made it. */
#ifndef CHASSIS_STATUS_H
#define CHASSIS_STATUS_H

#include "chassis/abi.h"

/* NULL means success. Made with chassis_host.status_new; the receiver releases it with status_release. */
typedef struct chassis_status chassis_status_t;

/* Codes, numbered as in absl::Status. */
#define CHASSIS_OK 0
#define CHASSIS_CANCELLED 1 /* passed on from the host, which asked to stop; else an error of the plugin */
#define CHASSIS_UNKNOWN 2
#define CHASSIS_INVALID_ARGUMENT 3   /* the user's configuration or data is wrong */
#define CHASSIS_DEADLINE_EXCEEDED 4
#define CHASSIS_NOT_FOUND 5
#define CHASSIS_ALREADY_EXISTS 6
#define CHASSIS_PERMISSION_DENIED 7
#define CHASSIS_RESOURCE_EXHAUSTED 8 /* out of memory or space; the message names requested and free bytes */
#define CHASSIS_FAILED_PRECONDITION 9
#define CHASSIS_ABORTED 10 /* this rank cannot continue; peers must be told */
#define CHASSIS_OUT_OF_RANGE 11
#define CHASSIS_UNIMPLEMENTED 12 /* from claim(): a refusal with its reason; the host asks the next provider */
#define CHASSIS_INTERNAL 13
#define CHASSIS_UNAVAILABLE 14
#define CHASSIS_DATA_LOSS 15

#endif
