/* The ground rules of the boundary between host and plugin: versions, growth, strings, ownership markers.
 * Everything that crosses is C11, little-endian, 64-bit, fixed width.
 *
 * Growth. A struct that begins with struct_size may grow: a later minor appends members and changes none. Its first
 * size is frozen as CHASSIS_<NAME>_V1_SIZE; a shorter struct is refused. The side that fills a struct sets struct_size
 * to the number of bytes it filled. The other side reads no further than struct_size and treats missing members as
 * zero: a missing function is not offered. A side that writes into a struct of the other side writes no further than
 * its struct_size. Arrays of such structs are arrays of pointers, or have the struct_size of their first item as stride
 * where the comment says so. A struct without struct_size never changes. An unknown constant is refused with an error
 * that names it; so is an unknown flag, unless the comment says that it is ignored. */
#ifndef CHASSIS_ABI_H
#define CHASSIS_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Until 1.0 a minor may change existing parts, and then raises the oldest minor that a host accepts; sdk/CHANGELOG.md
 * says what changed. The major is the suffix of the entry symbol; the minor is negotiated as the smaller of the host's
 * and the plugin's. */
#define CHASSIS_ABI_MAJOR 0
#define CHASSIS_ABI_MINOR 20
#define CHASSIS_ABI_OLDEST_MINOR 20 /* the oldest plugins that a host accepts */

#ifdef __cplusplus
#define CHASSIS_EXTERN_C extern "C"
#else
#define CHASSIS_EXTERN_C extern
#endif
#define CHASSIS_EXPORT CHASSIS_EXTERN_C __attribute__((visibility("default")))

/* Ownership of a pointer parameter. The macros expand to nothing; they are for readers and code generators.
 * BORROWED: valid until the call returns. OWNED: passes from callee to caller. STOLEN: passes from caller to callee. */
#define CHASSIS_BORROWED
#define CHASSIS_OWNED
#define CHASSIS_STOLEN

/* True if the writer of *s knew the field, that is, struct_size covers it. Check it before reading a member that was
 * added after _V1_SIZE. */
#define CHASSIS_HAS(s, field) \
  ((size_t)(s)->struct_size >= (size_t)((const char*)&(s)->field - (const char*)(s)) + sizeof((s)->field))

/* UTF-8 text of len bytes, not terminated by NUL. ptr may be NULL if len is 0. */
typedef struct chassis_str {
  const char* ptr;
  uint64_t len;
} chassis_str_t;

/* A member in use (chassis/plugin.h): the first argument of every function in its interfaces. */
struct chassis_instance;

#endif
