/* chassis.options/1: the options of one instance, and the schema that the host checks them against. */
#ifndef CHASSIS_SERVICE_OPTIONS_H
#define CHASSIS_SERVICE_OPTIONS_H

#include "chassis/abi.h"
#include "chassis/status.h"

#define CHASSIS_OPTIONS_ID "chassis.options/1"

#define CHASSIS_OPTION_BOOL 1u
#define CHASSIS_OPTION_INT 2u
#define CHASSIS_OPTION_FLOAT 3u
#define CHASSIS_OPTION_STRING 4u
#define CHASSIS_OPTION_STRING_LIST 5u
#define CHASSIS_OPTION_INT_LIST 6u
#define CHASSIS_OPTION_FLOAT_LIST 7u
#define CHASSIS_OPTION_TABLE 8u /* any TOML table, passed as JSON text */

/* One option in a member's schema; static. */
typedef struct chassis_option {
  uint32_t struct_size;
  uint32_t type;           /* CHASSIS_OPTION_… */
  chassis_str_t name;
  chassis_str_t default_json; /* as JSON text: "0.1", "\"nf4\"", "[0.9, 0.95]"; empty = the user must set it */
  chassis_str_t doc;          /* one line; shown by `chassis schema` */
  double min;              /* numbers, and every item of number lists; ignored unless has_range */
  double max;
  uint32_t has_range;
  uint32_t num_choices;    /* strings: allowed values; 0 = any */
  const chassis_str_t* choices;
} chassis_option_t;
#define CHASSIS_OPTION_V1_SIZE 88u

/* [control] All calls fail with NOT_FOUND for a name outside the schema and INVALID_ARGUMENT for a wrong type. */
typedef struct chassis_options {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  chassis_status_t* (*get_bool)(const struct chassis_options* o, chassis_str_t name, uint32_t* out);
  chassis_status_t* (*get_int)(const struct chassis_options* o, chassis_str_t name, int64_t* out);
  chassis_status_t* (*get_float)(const struct chassis_options* o, chassis_str_t name, double* out);
  /* *out is valid as long as the instance. */
  chassis_status_t* (*get_string)(const struct chassis_options* o, chassis_str_t name, chassis_str_t* out);
  /* Lists and tables, as JSON text; *out is valid as long as the instance. Any option may be read this way. */
  chassis_status_t* (*get_json)(const struct chassis_options* o, chassis_str_t name, chassis_str_t* out);
  /* "file:line:column" of the value, or "default", for error messages. *out is valid as long as the instance. */
  chassis_status_t* (*origin)(const struct chassis_options* o, chassis_str_t name, chassis_str_t* out);
} chassis_options_t;
#define CHASSIS_OPTIONS_V1_SIZE 64u

#endif
