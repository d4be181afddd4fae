/* Attention in plain C11: naive loops in fp32 on the CPU, with causal and document masks; everything else is refused.
 * Row (b*T + t)*heads + head of a tensor is one head of one position; q has T positions, k and v have S. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/ops.h"
#include "chassis/plugin.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"

CHASSIS_MANIFEST(
    "chassis-manifest=1\n"
    "id=" CHASSIS_PLUGIN_ID
    "\n"
    "version=" CHASSIS_PLUGIN_VERSION
    "\n"
    "abi=0.20\n"
    "abi-min-host=0.20\n"
    "tier=" CHASSIS_PLUGIN_TIER
    "\n"
    "member=ops/" CHASSIS_PLUGIN_ID
    "\n"
    "requires=chassis.tensor/1\n"
    "requires=chassis.task/1\n"
    "swappable=1\n");

#define STR(text) \
  { text, sizeof(text) - 1 }

static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct attention {
  chassis_instance_t base; /* first member: the host's pointer to it is also a pointer to this struct */
  const chassis_host_t* host;
  const chassis_tensor_service_t* tensor;
  const chassis_task_t* task;
} attention_t;

typedef struct kernel {
  float scale;
  int causal;
  uint32_t num_inputs;
} kernel_t;

static chassis_status_t* fail(const attention_t* self, int32_t code, const char* text) {
  const chassis_str_t message = {text, strlen(text)};
  return self->host->status_new(self->host, code, message, NULL);
}

/* ---- Nodes: which of them the provider claims, and what they need. */

static const chassis_attr_t* find_attr(const chassis_op_view_t* op, const char* name) {
  for (uint32_t i = 0; i < op->num_attrs; ++i) {
    if (is(op->attrs[i].name, name)) return &op->attrs[i];
  }
  return NULL;
}
static int64_t attr_int(const chassis_op_view_t* op, const char* name) {
  const chassis_attr_t* attr = find_attr(op, name);
  return attr != NULL ? attr->value.i : 0;
}

static chassis_status_t* claim(chassis_instance_t* base, const chassis_node_t* node, double* cost) {
  const attention_t* self = (const attention_t*)base;
  static const char* const known[] = {"scale", "causal", "document", "window", "chunk", "prefix"};
  const chassis_op_view_t* op = node->ops[0];
  uint32_t num_known = 0;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) num_known += find_attr(op, known[i]) != NULL;
  if (num_known != op->num_attrs) return fail(self, CHASSIS_UNIMPLEMENTED, "does not know an attribute of the op");
  for (size_t i = 3; i < sizeof known / sizeof known[0]; ++i) {
    char text[64];
    snprintf(text, sizeof text, "has no mask '%s'", known[i]);
    if (attr_int(op, known[i]) != 0) return fail(self, CHASSIS_UNIMPLEMENTED, text);
  }
  if (node->device_type != CHASSIS_DEVICE_CPU) return fail(self, CHASSIS_UNIMPLEMENTED, "runs on the CPU only");
  if (node->operands[node->inputs[0]]->dtype != CHASSIS_DTYPE_F32) {
    return fail(self, CHASSIS_UNIMPLEMENTED, "computes in float32 only");
  }
  *cost = 0;
  return NULL;
}

static chassis_status_t* infer(chassis_instance_t* self, const chassis_node_t* node, chassis_infer_t* out) {
  (void)self;
  out->keeps_inputs = (1u << node->num_inputs) - 1u;
  return NULL;
}

static chassis_status_t* create_kernel(chassis_instance_t* self, const chassis_node_t* node, void** out) {
  const chassis_attr_t* scale = find_attr(node->ops[0], "scale");
  kernel_t* kernel = malloc(sizeof *kernel);
  if (kernel == NULL) return fail((attention_t*)self, CHASSIS_RESOURCE_EXHAUSTED, "out of memory for a kernel");
  kernel->scale = scale != NULL ? (float)scale->value.f : 1.0f;
  kernel->causal = attr_int(node->ops[0], "causal") != 0;
  kernel->num_inputs = node->num_inputs;
  *out = kernel;
  return NULL;
}
static void destroy_kernel(chassis_instance_t* self, void* kernel) {
  (void)self;
  free(kernel);
}

/* ---- Computation. */

typedef struct work {
  kernel_t kernel;
  int64_t T, S, heads, kv_heads, D, Dv, query_offset;
  const float *q, *k, *v, *dy;
  float *y, *dq, *dk, *dv; /* dq is NULL in forward */
  const int32_t* document;
  float* weights; /* a row of S weights for each pair of batch row and key head */
} work_t;

static float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
static void add(float* y, float factor, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

static int sees(const work_t* w, int64_t b, int64_t t, int64_t s) {
  if (w->kernel.causal && s > t + w->query_offset) return 0;
  if (w->document == NULL) return 1;
  const int32_t mine = w->document[b * w->T + t];
  return mine >= 0 && w->document[b * w->S + s] == mine;
}

/* Writes the softmax over the keys that the query sees into p. Returns 0 if the query sees none. */
static int softmax(const work_t* w, float* p, int64_t b, int64_t t, const float* q, int64_t kv_head) {
  float largest = -INFINITY, sum = 0;
  for (int64_t s = 0; s < w->S; ++s) {
    p[s] = sees(w, b, t, s) ? w->kernel.scale * dot(q, w->k + ((b * w->S + s) * w->kv_heads + kv_head) * w->D, w->D)
                            : -INFINITY;
    if (p[s] > largest) largest = p[s];
  }
  if (largest == -INFINITY) return 0;
  for (int64_t s = 0; s < w->S; ++s) sum += p[s] = expf(p[s] - largest);
  for (int64_t s = 0; s < w->S; ++s) p[s] /= sum;
  return 1;
}

static void forward_row(const work_t* w, const float* p, int64_t query, int64_t first_key) {
  for (int64_t s = 0; s < w->S; ++s) {
    if (p[s] != 0) add(w->y + query * w->Dv, p[s], w->v + (first_key + s * w->kv_heads) * w->Dv, w->Dv);
  }
}

static void backward_row(const work_t* w, const float* p, int64_t query, int64_t first_key) {
  const float* dy = w->dy + query * w->Dv;
  float mean = 0; /* of the weights' gradients, weighted by the weights */
  for (int64_t s = 0; s < w->S; ++s) {
    if (p[s] != 0) mean += p[s] * dot(dy, w->v + (first_key + s * w->kv_heads) * w->Dv, w->Dv);
  }
  for (int64_t s = 0; s < w->S; ++s) {
    const int64_t key = first_key + s * w->kv_heads;
    if (p[s] == 0) continue;
    const float d_score = p[s] * (dot(dy, w->v + key * w->Dv, w->Dv) - mean) * w->kernel.scale;
    add(w->dv + key * w->Dv, p[s], dy, w->Dv);
    add(w->dq + query * w->D, d_score, w->k + key * w->D, w->D);
    add(w->dk + key * w->D, d_score, w->q + query * w->D, w->D);
  }
}

/* Items are pairs of batch row and key head, so that no two threads write to the same key. */
static void run_items(void* context, int64_t begin, int64_t end) {
  const work_t* w = context;
  const int64_t group = w->heads / w->kv_heads;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t b = item / w->kv_heads, kv_head = item % w->kv_heads;
    const int64_t first_key = b * w->S * w->kv_heads + kv_head;
    float* p = w->weights + item * w->S;
    for (int64_t i = 0; i < w->T * group; ++i) {
      const int64_t t = i / group, query = (b * w->T + t) * w->heads + kv_head * group + i % group;
      if (!softmax(w, p, b, t, w->q + query * w->D, kv_head)) continue;
      w->dq == NULL ? forward_row(w, p, query, first_key) : backward_row(w, p, query, first_key);
    }
  }
}

static chassis_tensor_view_t view_of(const attention_t* self, chassis_tensor_t tensor) {
  chassis_tensor_view_t view = {.struct_size = sizeof view};
  self->tensor->view(tensor, &view);
  return view;
}

/* A new tensor of zeros. */
static chassis_status_t* zeros(const attention_t* self, const int64_t* sizes, chassis_tensor_t* out, float** data) {
  chassis_status_t* status =
      self->tensor->create(self->tensor, CHASSIS_DTYPE_F32, CHASSIS_DEVICE_CPU, 0, 4, sizes, out);
  if (status != NULL) return status;
  const chassis_tensor_view_t view = view_of(self, *out);
  *data = view.data;
  if (view.num_elements > 0) memset(view.data, 0, (size_t)view.num_elements * sizeof(float));
  return NULL;
}

static chassis_status_t* run(const attention_t* self, work_t* w, int64_t num_items) {
  w->weights = malloc((size_t)(num_items * w->S) * sizeof(float) + 1);
  if (w->weights == NULL) return fail(self, CHASSIS_RESOURCE_EXHAUSTED, "out of memory for attention weights");
  self->task->parallel_for(self->task, num_items, 1, run_items, w);
  free(w->weights);
  return NULL;
}

static work_t work_of(const attention_t* self, const kernel_t* kernel, const chassis_call_t* call, int64_t* num_items) {
  const chassis_tensor_view_t q = view_of(self, call->inputs[0]), k = view_of(self, call->inputs[1]);
  const chassis_tensor_view_t v = view_of(self, call->inputs[2]);
  work_t w = {.kernel = *kernel,
              .T = q.sizes[1],
              .S = k.sizes[1],
              .heads = q.sizes[2],
              .kv_heads = k.sizes[2],
              .D = q.sizes[3],
              .Dv = v.sizes[3],
              .query_offset = call->query_offset,
              .q = q.data,
              .k = k.data,
              .v = v.data};
  if (kernel->num_inputs > 3 && call->inputs[3] != NULL) w.document = view_of(self, call->inputs[3]).data;
  *num_items = q.sizes[0] * w.kv_heads;
  return w;
}

static chassis_status_t* forward(chassis_instance_t* base, void* kernel, chassis_call_t* call) {
  const attention_t* self = (const attention_t*)base;
  const chassis_tensor_view_t q = view_of(self, call->inputs[0]), v = view_of(self, call->inputs[2]);
  const int64_t sizes[4] = {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
  int64_t num_items;
  work_t work = work_of(self, kernel, call, &num_items);
  chassis_tensor_t y = NULL;
  chassis_status_t* status = zeros(self, sizes, &y, &work.y);
  if (status == NULL) status = run(self, &work, num_items);
  if (status == NULL) {
    call->outputs[0] = y;
  } else {
    self->tensor->release(self->tensor, y);
  }
  return status;
}

static chassis_status_t* backward_inputs(chassis_instance_t* base, void* kernel, chassis_call_t* call) {
  const attention_t* self = (const attention_t*)base;
  int64_t num_items;
  work_t work = work_of(self, kernel, call, &num_items);
  chassis_tensor_t grads[3] = {NULL, NULL, NULL};
  float** data[3] = {&work.dq, &work.dk, &work.dv};
  chassis_status_t* status = NULL;
  if (call->grad_outputs[0] == NULL) return NULL; /* the gradient is zero */
  work.dy = view_of(self, call->grad_outputs[0]).data;
  for (int i = 0; i < 3 && status == NULL; ++i) {
    status = zeros(self, view_of(self, call->inputs[i]).sizes, &grads[i], data[i]);
  }
  if (status == NULL) status = run(self, &work, num_items);
  for (int i = 0; i < 3; ++i) {
    if (status == NULL && (call->needs_grad_inputs == NULL || call->needs_grad_inputs[i])) {
      call->grad_inputs[i] = grads[i];
    } else {
      self->tensor->release(self->tensor, grads[i]);
    }
  }
  return status;
}

/* ---- Tables. */

static const chassis_str_t patterns[] = {STR("attention")};
static const chassis_ops_t ops = {.struct_size = sizeof ops,
                                  .num_patterns = 1,
                                  .patterns = patterns,
                                  .claim = claim,
                                  .infer = infer,
                                  .create_kernel = create_kernel,
                                  .destroy_kernel = destroy_kernel,
                                  .forward = forward,
                                  .backward_inputs = backward_inputs};

static const void* get_interface(const chassis_instance_t* self, chassis_str_t id) {
  (void)self;
  return is(id, CHASSIS_OPS_ID) ? &ops : NULL;
}
static void destroy(chassis_instance_t* self) { free(self); }

static const chassis_member_t the_member = {sizeof(chassis_member_t),
                                            0,
                                            STR("ops"),
                                            STR(CHASSIS_PLUGIN_ID),
                                            STR("attention in plain C, fp32 on the CPU"),
                                            NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }

static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  static const chassis_str_t tensor_id = STR(CHASSIS_TENSOR_ID), task_id = STR(CHASSIS_TASK_ID);
  static const chassis_str_t no_memory = STR("out of memory for an instance");
  static const chassis_str_t no_member = STR("this library has one member, ops/" CHASSIS_PLUGIN_ID);
  attention_t* self;
  if (!is(kind, "ops") || !is(id, CHASSIS_PLUGIN_ID)) {
    return host->status_new(host, CHASSIS_NOT_FOUND, no_member, NULL);
  }
  self = calloc(1, sizeof *self);
  if (self == NULL) return host->status_new(host, CHASSIS_RESOURCE_EXHAUSTED, no_memory, NULL);
  self->base.struct_size = sizeof self->base;
  self->base.get_interface = get_interface;
  self->base.destroy = destroy;
  self->host = host;
  self->tensor = host->get_service(host, tensor_id); /* not NULL: the manifest requires both */
  self->task = host->get_service(host, task_id);
  *out = &self->base;
  return NULL;
}

static const chassis_factory_t factory = {sizeof(chassis_factory_t), 1, member, create};

chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out) {
  (void)host;
  *out = &factory;
  return NULL;
}
