/* A tokenizer plugin as it was written for ABI 0.2, of chassis.tokenizer/1: bytes, and three special ids. Frozen, with
 * the headers beside it: what it says must run in every later host. */
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/tokenizer.h"
#include "chassis/plugin.h"

CHASSIS_MANIFEST(
    "chassis-manifest=1\nid=tiny_tokenizer\nversion=0.2.0\nabi=0.2\nabi-min-host=0.2\ntier=T0\n"
    "member=tokenizer/tiny_tokenizer\nlicense=Apache-2.0\n");

#define STR(text) \
  { text, sizeof(text) - 1 }
#define VOCAB 259

static chassis_str_t str(const char* text) {
  const chassis_str_t s = {text, strlen(text)};
  return s;
}
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct tiny {
  chassis_instance_t base;
  const chassis_host_t* host;
} tiny_t;

static chassis_status_t* info(struct chassis_instance* self, chassis_tokenizer_info_t* out) {
  (void)self;
  out->bos_id = 256;
  out->eos_id = 257;
  out->pad_id = 258;
  out->vocab_size = VOCAB;
  out->fingerprint = str("tiny-1");
  return NULL;
}

static chassis_status_t* encode(struct chassis_instance* self, chassis_str_t text, int32_t* ids, uint64_t* offsets,
                                uint64_t capacity, uint64_t* count) {
  uint64_t i;
  (void)self;
  for (i = 0; i < text.len && i < capacity; ++i) {
    ids[i] = (unsigned char)text.ptr[i];
    if (offsets != NULL) offsets[i] = i;
  }
  *count = text.len;
  return NULL;
}

static chassis_status_t* decode(struct chassis_instance* self, const int32_t* ids, uint64_t num_ids, char* text,
                                uint64_t capacity, uint64_t* count) {
  uint64_t i, n = 0;
  for (i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= VOCAB) {
      const chassis_host_t* host = ((const tiny_t*)self)->host;
      return host->status_new(host, CHASSIS_OUT_OF_RANGE, str("no such id"), NULL);
    }
    if (ids[i] > 255) continue;
    if (n < capacity) text[n] = (char)ids[i];
    ++n;
  }
  *count = n;
  return NULL;
}

static const chassis_tokenizer_t tokenizer = {sizeof tokenizer, 0, info, encode, decode};

static const void* get_interface(const struct chassis_instance* self, chassis_str_t id) {
  (void)self;
  return is(id, CHASSIS_TOKENIZER_ID) ? &tokenizer : NULL;
}
static void destroy(struct chassis_instance* self) { free(self); }

static const chassis_member_t the_member = {
    sizeof the_member, 0, STR("tokenizer"), STR("tiny_tokenizer"), STR("bytes as tokens"), NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }

static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  tiny_t* self;
  if (!is(kind, "tokenizer") || !is(id, "tiny_tokenizer"))
    return host->status_new(host, CHASSIS_NOT_FOUND, str("this library has one member, tokenizer/tiny_tokenizer"),
                            NULL);
  self = calloc(1, sizeof *self);
  if (self == NULL) return host->status_new(host, CHASSIS_RESOURCE_EXHAUSTED, str("out of memory"), NULL);
  self->base.struct_size = sizeof self->base;
  self->base.get_interface = get_interface;
  self->base.destroy = destroy;
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
