/* The ground rules of the boundary between host and plugin: versions, strings, sizes, ownership words.
 * Everything that crosses is C11, little-endian, 64-bit, fixed width; structs start with struct_size and only grow. */
#ifndef CHASSIS_ABI_H
#define CHASSIS_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The ABI is 0.x: free to change between minors until plugins of every kind exist. The major is the suffix of the
 * entry symbol; the minor is negotiated as the smaller of the host's and the plugin's. */
#define CHASSIS_ABI_MAJOR 0
#define CHASSIS_ABI_MINOR 1

#ifdef __cplusplus
#define CHASSIS_EXTERN_C extern "C"
#else
#define CHASSIS_EXTERN_C extern
#endif
#define CHASSIS_EXPORT CHASSIS_EXTERN_C __attribute__((visibility("default")))

/* Ownership of a pointer parameter. They expand to nothing and are read by people and by generators.
 * BORROWED: valid until the call returns. OWNED: passes from callee to caller. STOLEN: passes from caller to callee. */
#define CHASSIS_BORROWED
#define CHASSIS_OWNED
#define CHASSIS_STOLEN

/* True if the writer of *s knew the field: its struct_size covers it. A missing tail reads as zero. */
#define CHASSIS_HAS(s, field) \
  ((size_t)(s)->struct_size >= (size_t)((const char*)&(s)->field - (const char*)(s)) + sizeof((s)->field))

/* UTF-8 text of len bytes, not terminated by NUL. ptr may be NULL if len is 0. */
typedef struct chassis_str {
  const char* ptr;
  uint64_t len;
} chassis_str_t;

/* A member in use, chassis/plugin.h: the first argument of every function in its interfaces. */
struct chassis_instance;

#endif
