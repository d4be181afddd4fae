/* An optimizer plugin as it was written for ABI 0.5, of chassis.optimizer/1: momentum, averaged over the steps so far.
 * Frozen, with the headers beside it: what it says must run in every later host. */
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/optimizer.h"
#include "chassis/plugin.h"
#include "chassis/service/tensor.h"

CHASSIS_MANIFEST(
    "chassis-manifest=1\nid=tiny_optimizer\nversion=0.5.0\nabi=0.5\nabi-min-host=0.5\ntier=T0\n"
    "member=optimizer/tiny_optimizer\nrequires=chassis.tensor/1\nlicense=Apache-2.0\n");

#define STR(text) \
  { text, sizeof(text) - 1 }

static chassis_str_t str(const char* text) {
  const chassis_str_t s = {text, strlen(text)};
  return s;
}
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct tiny {
  chassis_instance_t base;
  const chassis_host_t* host;
  const chassis_tensor_service_t* tensors;
} tiny_t;

/* velocity = 0.9 velocity + gradient; weight = 0.9 weight + 1, by which the velocity is divided. */
static const chassis_state_desc_t states[] = {{sizeof states[0], CHASSIS_DTYPE_F32, STR("velocity"),
                                               CHASSIS_STATE_LIKE_PARAMETER, CHASSIS_GRANULARITY_ELEMENT, 0},
                                              {sizeof states[0], CHASSIS_DTYPE_F32, STR("weight"),
                                               CHASSIS_STATE_SCALAR, CHASSIS_GRANULARITY_ELEMENT, 0}};

static uint32_t num_states(struct chassis_instance* self) {
  (void)self;
  return sizeof states / sizeof states[0];
}
static const chassis_state_desc_t* state(struct chassis_instance* self, uint32_t i) {
  (void)self;
  return &states[i];
}

/* The scaled gradient of the largest tensor. */
static uint64_t workspace_bytes(struct chassis_instance* self, const int64_t* num_elements, uint32_t num_tensors) {
  uint64_t most = 0;
  uint32_t i;
  (void)self;
  for (i = 0; i < num_tensors; ++i)
    if ((uint64_t)num_elements[i] > most) most = (uint64_t)num_elements[i];
  return most * sizeof(float);
}

static chassis_tensor_view_t view_of(const tiny_t* self, chassis_tensor_t tensor) {
  chassis_tensor_view_t view = {0};
  view.struct_size = sizeof view;
  self->tensors->view(tensor, &view);
  return view;
}

static chassis_status_t* refuse(const tiny_t* self, const char* text) {
  return self->host->status_new(self->host, CHASSIS_INVALID_ARGUMENT, str(text), NULL);
}

static chassis_status_t* step(struct chassis_instance* instance, const chassis_optimizer_step_t* s) {
  const tiny_t* self = (const tiny_t*)instance;
  float* scaled = s->workspace;
  uint32_t i;
  int64_t e;
  for (i = 0; i < s->num_tensors; ++i) {
    const chassis_tensor_view_t p = view_of(self, s->params[i]), g = view_of(self, s->grads[i]);
    const chassis_tensor_view_t v = view_of(self, s->states[2 * i]), w = view_of(self, s->states[2 * i + 1]);
    const double lr = s->lr * (s->lr_scale != NULL ? s->lr_scale[i] : 1.0);
    const float rate = (float)lr, kept = (float)(1.0 - lr * s->weight_decay[i]);
    float *param = p.data, *velocity = v.data, *weight = w.data;
    const float* grad = g.data;
    if (p.device_type != CHASSIS_DEVICE_CPU) return refuse(self, "tiny_optimizer runs on the CPU");
    if (p.num_elements != g.num_elements || p.num_elements != v.num_elements || w.num_elements != 1)
      return refuse(self, "tensors of different sizes");
    if ((uint64_t)p.num_elements * sizeof(float) > s->workspace_bytes) return refuse(self, "too small a workspace");
    *weight = 0.9f * *weight + 1.0f;
    for (e = 0; e < p.num_elements; ++e) scaled[e] = grad[e] * (float)s->grad_scale;
    for (e = 0; e < p.num_elements; ++e) {
      velocity[e] = 0.9f * velocity[e] + scaled[e];
      param[e] = param[e] * kept - rate * (velocity[e] / *weight);
    }
  }
  return NULL;
}

static const chassis_optimizer_t optimizer = {sizeof optimizer, 0, num_states, state, step, workspace_bytes};

static const void* get_interface(const struct chassis_instance* self, chassis_str_t id) {
  (void)self;
  return is(id, CHASSIS_OPTIMIZER_ID) ? &optimizer : NULL;
}
static void destroy(struct chassis_instance* self) { free(self); }

static const chassis_member_t the_member = {
    sizeof the_member, 0, STR("optimizer"), STR("tiny_optimizer"), STR("averaged momentum"), NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }

static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  tiny_t* self;
  if (!is(kind, "optimizer") || !is(id, "tiny_optimizer"))
    return host->status_new(host, CHASSIS_NOT_FOUND, str("this library has one member, optimizer/tiny_optimizer"),
                            NULL);
  self = calloc(1, sizeof *self);
  if (self == NULL) return host->status_new(host, CHASSIS_RESOURCE_EXHAUSTED, str("out of memory"), NULL);
  self->base.struct_size = sizeof self->base;
  self->base.get_interface = get_interface;
  self->base.destroy = destroy;
  self->host = host;
  self->tensors = host->get_service(host, str(CHASSIS_TENSOR_ID));
  *out = &self->base;
  return NULL;
}

static const chassis_factory_t factory = {sizeof factory, 1, member, create};

chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out) {
  (void)host;
  *out = &factory;
  return NULL;
}
