/* The linears of experts in plain C11: naive loops in fp32 on the CPU, without a bias. Rows are sorted by expert; those
 * after the last expert's belong to none. */
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/ops.h"
#include "chassis/plugin.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"

CHASSIS_MANIFEST("chassis-manifest=1\nid=" CHASSIS_PLUGIN_ID "\nversion=" CHASSIS_PLUGIN_VERSION
                 "\nabi=0.20\nabi-min-host=0.20\ntier=" CHASSIS_PLUGIN_TIER "\nmember=ops/" CHASSIS_PLUGIN_ID
                 "\nrequires=chassis.tensor/1\nrequires=chassis.task/1\nswappable=1\n");
#define STR(text) \
  { text, sizeof(text) - 1 }
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct grouped {
  chassis_instance_t base; /* first, so that the host's pointer to it is also one to this struct */
  const chassis_host_t* host;
  const chassis_tensor_service_t* tensor;
  const chassis_task_t* task;
} grouped_t;
static chassis_status_t* fail(chassis_instance_t* self, int32_t code, const char* text) {
  const chassis_host_t* host = ((grouped_t*)self)->host;
  return host->status_new(host, code, (chassis_str_t){text, strlen(text)}, NULL);
}

static chassis_status_t* claim(chassis_instance_t* self, const chassis_node_t* node, double* cost) {
  if (node->ops[0]->num_attrs > 0) return fail(self, CHASSIS_UNIMPLEMENTED, "does not know an attribute of the op");
  if (node->num_params > 1) return fail(self, CHASSIS_UNIMPLEMENTED, "adds no bias");
  if (node->device_type != CHASSIS_DEVICE_CPU || node->operands[node->inputs[0]]->dtype != CHASSIS_DTYPE_F32)
    return fail(self, CHASSIS_UNIMPLEMENTED, "computes in float32 on the CPU only");
  *cost = 0;
  return NULL;
}
static chassis_status_t* infer(chassis_instance_t* self, const chassis_node_t* node, chassis_infer_t* out) {
  (void)self, (void)node;
  out->flags = CHASSIS_KERNEL_HOST_OUTPUTS;
  out->keeps_inputs = 3; /* rows and experts */
  return NULL;
}
/* A call has all that a kernel needs, so a kernel is the instance. */
static chassis_status_t* create_kernel(chassis_instance_t* self, const chassis_node_t* node, void** kernel) {
  (void)node;
  *kernel = self;
  return NULL;
}
static void destroy_kernel(chassis_instance_t* self, void* kernel) { (void)self, (void)kernel; }

typedef struct work {
  int64_t num_pairs, out, in;
  const int32_t* experts;
  const float *x, *weight, *dy;
  float *y, *dx, *dweight;
} work_t;

/* The rows of expert e: from *begin to *end - 1. A pair is a token with one of its experts, or with -1. */
static void rows_of(const work_t* w, int64_t e, int64_t* begin, int64_t* end) {
  *begin = *end = 0;
  for (int64_t p = 0; p < w->num_pairs; ++p) {
    *begin += w->experts[p] >= 0 && w->experts[p] < e;
    *end += w->experts[p] >= 0 && w->experts[p] <= e;
  }
}
/* y += factor * x */
static void add(float* y, float factor, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}
/* Each body computes the experts from `first` to `last` - 1, which share no output. */
static void forward_body(void* context, int64_t first, int64_t last) {
  const work_t* w = context;
  for (int64_t e = first, r, end; e < last; ++e)
    for (rows_of(w, e, &r, &end); r < end; ++r)
      for (int64_t o = 0; o < w->out; ++o) {
        const float *row = w->x + r * w->in, *column = w->weight + (e * w->out + o) * w->in;
        float sum = 0;
        for (int64_t i = 0; i < w->in; ++i) sum += row[i] * column[i];
        w->y[r * w->out + o] = sum;
      }
}
static void backward_body(void* context, int64_t first, int64_t last) {
  const work_t* w = context;
  for (int64_t e = first, r, end; e < last; ++e)
    for (rows_of(w, e, &r, &end); r < end; ++r)
      for (int64_t o = 0; o < w->out; ++o) {
        const int64_t row = r * w->in, column = (e * w->out + o) * w->in;
        const float dy = w->dy[r * w->out + o];
        if (w->dx != NULL) add(w->dx + row, dy, w->weight + column, w->in);
        if (w->dweight != NULL) add(w->dweight + column, dy, w->x + row, w->in);
      }
}

static chassis_tensor_view_t view_of(const grouped_t* self, chassis_tensor_t tensor) {
  chassis_tensor_view_t view = {.struct_size = sizeof view};
  self->tensor->view(tensor, &view);
  return view;
}
/* Rows of no expert, and gradients of experts without rows, stay 0. */
static void clear(chassis_tensor_view_t view) { memset(view.data, 0, (size_t)view.num_elements * sizeof(float)); }

static void run(const grouped_t* self, const chassis_call_t* call, work_t w, void (*body)(void*, int64_t, int64_t)) {
  const chassis_tensor_view_t experts = view_of(self, call->inputs[1]), weight = view_of(self, call->params[0]);
  w.num_pairs = experts.num_elements, w.out = weight.sizes[1], w.in = weight.sizes[2];
  w.experts = experts.data, w.weight = weight.data;
  w.x = view_of(self, call->inputs[0]).data;
  self->task->parallel_for(self->task, weight.sizes[0], 1, body, &w);
}

static chassis_status_t* forward(chassis_instance_t* base, void* kernel, chassis_call_t* call) {
  const grouped_t* self = kernel;
  const chassis_tensor_view_t y = view_of(self, call->outputs[0]);
  (void)base;
  clear(y);
  run(self, call, (work_t){.y = y.data}, forward_body);
  return NULL;
}
static chassis_status_t* backward_inputs(chassis_instance_t* base, void* kernel, chassis_call_t* call) {
  const grouped_t* self = kernel;
  const chassis_tensor_view_t x = view_of(self, call->inputs[0]);
  (void)base;
  if (call->grad_outputs[0] == NULL) return NULL; /* the gradient is zero */
  chassis_status_t* status = self->tensor->create(self->tensor, CHASSIS_DTYPE_F32, CHASSIS_DEVICE_CPU, 0, x.num_dims,
                                                  x.sizes, &call->grad_inputs[0]);
  if (status != NULL) return status;
  const chassis_tensor_view_t dy = view_of(self, call->grad_outputs[0]), dx = view_of(self, call->grad_inputs[0]);
  clear(dx);
  run(self, call, (work_t){.dy = dy.data, .dx = dx.data}, backward_body);
  return NULL;
}
static chassis_status_t* backward_params(chassis_instance_t* base, void* kernel, chassis_call_t* call) {
  const grouped_t* self = kernel;
  (void)base;
  if (call->grad_params[0] == NULL) return NULL; /* it is not wanted */
  const chassis_tensor_view_t dweight = view_of(self, call->grad_params[0]);
  if (call->grad_params_beta[0] == 0) clear(dweight);
  if (call->grad_outputs[0] == NULL) return NULL;
  const chassis_tensor_view_t dy = view_of(self, call->grad_outputs[0]);
  run(self, call, (work_t){.dy = dy.data, .dweight = dweight.data}, backward_body);
  return NULL;
}

static const chassis_str_t patterns[] = {STR("grouped_linear")};
static const chassis_ops_t ops = {sizeof ops,     1,       patterns,        claim,           infer, create_kernel,
                                  destroy_kernel, forward, backward_inputs, backward_params, NULL};
static const void* get_interface(const chassis_instance_t* self, chassis_str_t id) {
  return self != NULL && is(id, CHASSIS_OPS_ID) ? &ops : NULL;
}
static void destroy(chassis_instance_t* self) { free(self); }
static const chassis_member_t the_member = {sizeof the_member,
                                            0,
                                            STR("ops"),
                                            STR(CHASSIS_PLUGIN_ID),
                                            STR("the linears of experts in plain C, fp32 on the CPU"),
                                            NULL};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }
static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  static const chassis_str_t tensor = STR(CHASSIS_TENSOR_ID), task = STR(CHASSIS_TASK_ID);
  static const chassis_str_t why = STR("no such member, or out of memory");
  grouped_t* self = is(kind, "ops") && is(id, CHASSIS_PLUGIN_ID) ? calloc(1, sizeof *self) : NULL;
  if (self == NULL) return host->status_new(host, CHASSIS_NOT_FOUND, why, NULL);
  self->base =
      (chassis_instance_t){.struct_size = sizeof self->base, .get_interface = get_interface, .destroy = destroy};
  self->host = host;
  self->tensor = host->get_service(host, tensor); /* not NULL: the manifest requires both */
  self->task = host->get_service(host, task);
  *out = &self->base;
  return NULL;
}
static const chassis_factory_t factory = {sizeof factory, 1, member, create};
chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out) {
  (void)host;
  *out = &factory;
  return NULL;
}
