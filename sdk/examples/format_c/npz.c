/* Checkpoints that numpy.load() reads, in plain C11: a ZIP file (PKWARE's APPNOTE) of .npy arrays (NEP 1), up to 4 GiB.
 * The plugin says where everything is; the host does the rest. finish() fills in headers, as they contain the
 * CRC-32. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/format.h"
#include "chassis/plugin.h"

CHASSIS_MANIFEST("chassis-manifest=1\nid=" CHASSIS_PLUGIN_ID "\nversion=" CHASSIS_PLUGIN_VERSION
                 "\nabi=0.20\n"
                 "abi-min-host=0.20\ntier=" CHASSIS_PLUGIN_TIER "\nmember=format/" CHASSIS_PLUGIN_ID "\nswappable=1\n");
#define STR(text) { text, sizeof(text) - 1 }
#define TRY(call) do { chassis_status_t* failed = (call); if (failed != NULL) return failed; } while (0)
static const chassis_str_t file_name = STR("model.npz"), none = STR(""), suffix = STR(".npy");
static const chassis_str_t no_member = STR("this library has no such member, or memory ran out");
enum { LOCAL = 30, ENTRY = 46, END = 22, HEADER = 512 }; /* bytes */

typedef struct { chassis_instance_t base; const chassis_host_t* host; } npz_t;
static chassis_status_t* fail(chassis_instance_t* self, int32_t code, const char* text) {
  const chassis_host_t* host = ((npz_t*)self)->host;
  return host->status_new(host, code, (chassis_str_t){text, strlen(text)}, NULL);
}
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }
static char* put(char* to, uint64_t number, int num_bytes) {
  for (; num_bytes > 0; --num_bytes, number >>= 8) *to++ = (char)(number & 255);
  return to;
}

static const struct { uint32_t dtype; char npy[4]; } types[] = {
    {CHASSIS_DTYPE_F32, "<f4"}, {CHASSIS_DTYPE_F64, "<f8"}, {CHASSIS_DTYPE_F16, "<f2"}, {CHASSIS_DTYPE_I64, "<i8"}};
enum { NUM_TYPES = sizeof types / sizeof types[0] };
/* Offsets of the ZIP header, the array's header, the tensor, and the end. */
typedef struct { uint64_t local, at, data, end; char header[HEADER]; } array_t;
static chassis_status_t* describe(chassis_instance_t* self, const chassis_disk_tensor_t* t, array_t* a) {
  int type = 0, n;
  while (type < NUM_TYPES && types[type].dtype != t->dtype) ++type;
  if (type == NUM_TYPES || t->num_dims > 8)
    return fail(self, CHASSIS_INVALID_ARGUMENT, "holds only floats and int64 in at most 8 dims");
  n = sprintf(a->header + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].npy) + 10;
  for (uint32_t d = 0; d < t->num_dims; ++d) n += sprintf(a->header + n, "%lld, ", (long long)t->global_shape[d]);
  n += sprintf(a->header + n, "), }");
  a->local = a->end; /* of the previous array */
  a->at = a->local + LOCAL + t->name.len + suffix.len;
  a->data = (a->at + (uint64_t)n + 64) / 64 * 64;
  a->end = a->data + t->num_bytes;
  if (a->end >= UINT32_MAX) return fail(self, CHASSIS_INVALID_ARGUMENT, "a ZIP file holds at most 4 GiB");
  memset(a->header + n, ' ', HEADER - (size_t)n);
  a->header[a->data - a->at - 1] = '\n';
  put(memcpy(a->header, "\x93NUMPY\1", 8) + 8, a->data - a->at - 10, 2);
  return NULL;
}

static chassis_status_t* layout(chassis_instance_t* self, const chassis_save_request_t* r,
                                const chassis_layout_sink_t* s) {
  array_t a = {0};
  uint64_t directory = END;
  for (uint32_t i = 0; i < r->num_tensors; directory += ENTRY + r->tensors[i++]->name.len + suffix.len) {
    TRY(describe(self, r->tensors[i], &a));
    TRY(s->place(s, i, 0, a.data));
  }
  return s->file(s, file_name, none, a.end + directory, 0);
}

static chassis_status_t* finish(chassis_instance_t* self, const chassis_save_request_t* r, uint32_t file,
                                const chassis_finish_sink_t* s) {
  array_t a = {0};
  uint64_t at, begin; /* of the directory */
  (void)file;
  for (uint32_t i = 0; i < r->num_tensors; ++i) TRY(describe(self, r->tensors[i], &a));
  begin = at = a.end, a.end = 0;
  for (uint32_t i = 0; i < r->num_tensors; ++i) {
    const chassis_str_t name = r->tensors[i]->name;
    char entry[ENTRY] = "PK\1\2\24", local[LOCAL] = "PK\3\4", *common = entry + 6;
    uint32_t crc;
    TRY(describe(self, r->tensors[i], &a));
    TRY(s->fill(s, a.at, (chassis_str_t){a.header, a.data - a.at}));
    TRY(s->checksum(s, a.at, a.end - a.at, &crc));
    put(put(put(put(put(common, 20, 2), 0x800, 2), 0, 4), 0x21, 2), crc, 4); /* UTF-8 names; stored; dated 1980 */
    put(put(put(common + 14, a.end - a.at, 4), a.end - a.at, 4), name.len + suffix.len, 2);
    put(entry + 42, a.local, 4);
    memcpy(local + 4, common, 26);
    TRY(s->fill(s, a.local, (chassis_str_t){local, LOCAL}));
    TRY(s->fill(s, a.local + LOCAL, name));
    TRY(s->fill(s, a.at - suffix.len, suffix));
    TRY(s->fill(s, at, (chassis_str_t){entry, ENTRY}));
    TRY(s->fill(s, at + ENTRY, name));
    TRY(s->fill(s, at + ENTRY + name.len, suffix));
    at += ENTRY + name.len + suffix.len;
  }
  char end[END] = "PK\5\6";
  put(put(put(put(end + 8, r->num_tensors, 2), r->num_tensors, 2), at - begin, 4), begin, 4);
  return s->fill(s, at, (chassis_str_t){end, END});
}

/* There is no scan(): this format serves [export], not [checkpoint], whose files are read again. */
static const chassis_format_t format = {sizeof format, 1, layout, NULL, finish, CHASSIS_CHECKSUM_CRC32, 0};
static const void* get_interface(const chassis_instance_t* self, chassis_str_t id) {
  return self != NULL && is(id, CHASSIS_FORMAT_ID) ? &format : NULL;
}
static void destroy(chassis_instance_t* self) { free(self); }
static const chassis_member_t the_member = {sizeof the_member, 0, STR("format"), STR(CHASSIS_PLUGIN_ID),
                                            STR("example: model.npz, written from plain C"), NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }
static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  npz_t* self = is(kind, "format") && is(id, CHASSIS_PLUGIN_ID) ? calloc(1, sizeof *self) : NULL;
  if (self == NULL) return host->status_new(host, CHASSIS_NOT_FOUND, no_member, NULL);
  self->base = (chassis_instance_t){
      .struct_size = sizeof self->base, .get_interface = get_interface, .destroy = destroy};
  self->host = host;
  *out = &self->base;
  return NULL;
}
static const chassis_factory_t factory = {sizeof factory, 1, member, create};
chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out) {
  (void)host;
  *out = &factory;
  return NULL;
}
