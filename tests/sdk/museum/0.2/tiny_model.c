/* A model plugin as it was written for ABI 0.2, of chassis.model/1: an embedding, two linear layers and a head, whose
 * parameters files call "disk.…". Frozen, with the headers beside it: what it says must run in every later host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/model.h"
#include "chassis/plugin.h"

CHASSIS_MANIFEST(
    "chassis-manifest=1\nid=tiny_model\nversion=0.2.0\nabi=0.2\nabi-min-host=0.2\ntier=T0\nmember=model/tiny_model\n"
    "architecture=TinyModel\nlicense=Apache-2.0\n");

#define STR(text) \
  { text, sizeof(text) - 1 }
#define TRY(call)                        \
  do {                                   \
    chassis_status_t* status_ = call;    \
    if (status_ != NULL) return status_; \
  } while (0)

static chassis_str_t str(const char* text) {
  const chassis_str_t s = {text, strlen(text)};
  return s;
}
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct tiny {
  chassis_instance_t base;
  const chassis_host_t* host;
} tiny_t;

static chassis_status_t* refuse(const struct chassis_instance* self, const char* text) {
  const chassis_host_t* host = ((const tiny_t*)self)->host;
  return host->status_new(host, CHASSIS_INVALID_ARGUMENT, str(text), NULL);
}

static chassis_status_t* configure(struct chassis_instance* self, chassis_str_t json) {
  while (json.len > 0 && json.ptr[json.len - 1] == '\n') --json.len;
  if (json.len < 2 || json.ptr[0] != '{' || json.ptr[json.len - 1] != '}') return refuse(self, "no JSON object");
  for (uint64_t i = 1; i < json.len; ++i)
    if (json.ptr[i] == '-' && (json.ptr[i - 1] == ' ' || json.ptr[i - 1] == ':'))
      return refuse(self, "a negative number");
  return NULL;
}

static chassis_status_t* weight(const chassis_builder_t* b, const char* name, chassis_dim_t rows, chassis_dim_t columns,
                                uint32_t role, chassis_slot_t* out) {
  const chassis_axis_t axes[] = {{&rows, 1}, {&columns, 1}};
  const chassis_slot_desc_t desc = {sizeof desc, 2, str(name), axes, role, CHASSIS_INIT_NORMAL, 0.05, {NULL, 0}};
  return b->slot(b, &desc, out);
}

static chassis_status_t* op(const chassis_builder_t* b, const char* id, const chassis_value_t* inputs,
                            uint32_t num_inputs, const chassis_slot_t* param, const chassis_dim_t* dim,
                            chassis_value_t* out) {
  const chassis_op_desc_t desc = {sizeof desc, num_inputs, str(id),       str(id), inputs,      param,
                                  NULL,        dim,        param != NULL, 0,       dim != NULL, 0};
  return b->op(b, &desc, out);
}

static chassis_status_t* record(struct chassis_instance* self, const chassis_builder_t* b) {
  const chassis_str_t hidden_name = STR("hidden");
  chassis_dim_t hidden, vocab, stream[3] = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, 0};
  chassis_block_t embed, layer, head, layers[2];
  chassis_value_t ids, x, y[2], loss[2];
  chassis_slot_t slot;
  (void)self;
  TRY(b->dim(b, hidden_name, 16, &hidden));
  TRY(b->dim(b, str("vocab"), 259, &vocab));
  stream[2] = hidden;

  TRY(b->begin_block(b, str("embed"), &embed));
  TRY(b->field(b, str("input_ids"), &ids));
  TRY(weight(b, "embed.weight", vocab, hidden, CHASSIS_ROLE_EMBEDDING, &slot));
  TRY(op(b, "embedding", &ids, 1, &slot, &hidden, &x));
  TRY(b->output(b, hidden_name, x));
  TRY(b->end_block(b));

  TRY(b->begin_block(b, str("layer"), &layer));
  TRY(b->input(b, hidden_name, stream, 3, &y[0]));
  TRY(weight(b, "mix.weight", hidden, hidden, CHASSIS_ROLE_WEIGHT, &slot));
  TRY(op(b, "linear", &y[0], 1, &slot, &hidden, &y[1]));
  TRY(op(b, "add", y, 2, NULL, NULL, &x));
  TRY(b->output(b, hidden_name, x));
  TRY(b->end_block(b));

  TRY(b->begin_block(b, str("head"), &head));
  TRY(b->input(b, hidden_name, stream, 3, &x));
  TRY(weight(b, "head.weight", vocab, hidden, CHASSIS_ROLE_HEAD, &slot));
  TRY(op(b, "linear", &x, 1, &slot, &vocab, &loss[0]));
  TRY(b->field(b, str("labels"), &loss[1]));
  TRY(b->output(b, str("logits"), loss[0]));
  TRY(op(b, "cross_entropy", loss, 2, NULL, NULL, &x));
  TRY(b->output(b, str("loss"), x));
  TRY(b->end_block(b));

  layers[0] = layers[1] = layer;
  TRY(b->chain(b, str("embed"), str(""), &embed, 1));
  TRY(b->chain(b, str("layers"), str("layers.{i}"), layers, 2));
  return b->chain(b, str("head"), str(""), &head, 1);
}

static chassis_status_t* config(struct chassis_instance* self, const chassis_text_sink_t* out) {
  (void)self;
  out->text(out, str("{\"architectures\": [\"TinyModel\"], \"torch_dtype\": \"float32\"}"));
  return NULL;
}

static chassis_status_t* disk_name(struct chassis_instance* self, chassis_str_t parameter,
                                   const chassis_text_sink_t* out) {
  char text[256];
  (void)self;
  snprintf(text, sizeof text, "disk.%.*s", (int)parameter.len, parameter.ptr);
  out->text(out, str(text));
  return NULL;
}

static chassis_status_t* parameter_name(struct chassis_instance* self, chassis_str_t name,
                                        const chassis_text_sink_t* out) {
  const chassis_str_t behind = {name.ptr + 5, name.len - 5};
  (void)self;
  if (is(name, "disk.stored_buffer"))
    out->text(out, str(""));
  else
    out->text(out, name.len > 5 && memcmp(name.ptr, "disk.", 5) == 0 ? behind : name);
  return NULL;
}

static int64_t max_positions(struct chassis_instance* self) {
  (void)self;
  return 64;
}

static const chassis_model_t model = {sizeof model, 0,         configure,      record,
                                      config,       disk_name, parameter_name, max_positions};

static const void* get_interface(const struct chassis_instance* self, chassis_str_t id) {
  (void)self;
  return is(id, CHASSIS_MODEL_ID) ? &model : NULL;
}
static void destroy(struct chassis_instance* self) { free(self); }

static const chassis_member_t the_member = {
    sizeof the_member, 0, STR("model"), STR("tiny_model"), STR("an embedding, two linear layers and a head"), NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }

static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  tiny_t* self;
  if (!is(kind, "model") || !is(id, "tiny_model"))
    return host->status_new(host, CHASSIS_NOT_FOUND, str("this library has one member, model/tiny_model"), NULL);
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
