/* A hinge on the difference of the mean log-probabilities of two answers, in plain C11: max(0, margin - β (chosen -
 * rejected)). The margin of a pair, if the data have one, is added to that of the option. */
#include <stdlib.h>
#include <string.h>

#include "chassis/kind/objective.h"
#include "chassis/plugin.h"

CHASSIS_MANIFEST("chassis-manifest=1\nid=" CHASSIS_PLUGIN_ID "\nversion=" CHASSIS_PLUGIN_VERSION
                 "\nabi=0.20\nabi-min-host=0.20\ntier=" CHASSIS_PLUGIN_TIER "\nmember=objective/" CHASSIS_PLUGIN_ID
                 "\nrequires=chassis.options/1\n");
#define STR(text) \
  { text, sizeof(text) - 1 }
static int is(chassis_str_t s, const char* text) { return s.len == strlen(text) && memcmp(s.ptr, text, s.len) == 0; }

typedef struct {
  chassis_instance_t base; /* first, so that the host's pointer to it is also one to this struct */
  double margin, beta;
} hinge_t;
#define OPTION(name, usual, doc, max) \
  { sizeof(chassis_option_t), CHASSIS_OPTION_FLOAT, STR(name), STR(usual), STR(doc), 0, max, 1, 0, NULL }
static const chassis_option_t options[] = {OPTION("margin", "1.0", "difference at which the loss is 0", 100),
                                           OPTION("beta", "2.0", "factor of the difference", 1000)};
static const chassis_objective_term_t term = {STR("hinge"), CHASSIS_COUNT_UNITS, 0};
static const chassis_objective_metric_t metrics[] = {{STR("rewards/accuracies"), CHASSIS_BETTER_HIGHER, 0},
                                                     {STR("rewards/margins"), CHASSIS_BETTER_HIGHER, 0}};
static chassis_status_t* describe(chassis_instance_t* self, chassis_objective_desc_t* out) {
  (void)self; /* members that are not set stay 0 */
  out->values = CHASSIS_OBJECTIVE_LOGPS;
  out->units = CHASSIS_OBJECTIVE_PAIRS;
  out->needs = CHASSIS_OBJECTIVE_MARGINS;
  out->num_terms = 1, out->terms = &term, out->num_metrics = 2, out->metrics = metrics, out->num_sums = 4;
  return NULL;
}

static chassis_status_t* evaluate(chassis_instance_t* base, const chassis_objective_batch_t* b,
                                  const chassis_objective_result_t* out) {
  const hinge_t* self = (const hinge_t*)base;
  for (uint64_t chosen = 0; chosen < b->num_sequences; chosen += 2) {
    const uint64_t rejected = chosen + 1;
    const double slope = self->beta / b->length[chosen], other_slope = self->beta / b->length[rejected];
    const double difference = slope * b->logp[chosen] - other_slope * b->logp[rejected];
    const double loss = self->margin + b->margin[chosen] - difference;
    if (loss > 0) out->terms[0] += loss;
    if (loss > 0 && out->grad_logp != NULL) {
      out->grad_logp[chosen] = -b->term_weight[0] * slope;
      out->grad_logp[rejected] = b->term_weight[0] * other_slope;
    }
    out->sums[0] += difference > 0, out->sums[1] += 1;
    out->sums[2] += difference, out->sums[3] += 1;
  }
  return NULL;
}

static const chassis_objective_t objective = {sizeof objective, 0, describe, NULL, evaluate, NULL};
static const void* get_interface(const chassis_instance_t* self, chassis_str_t id) {
  return self != NULL && is(id, CHASSIS_OBJECTIVE_ID) ? &objective : NULL;
}
static void destroy(chassis_instance_t* self) { free(self); }
static const chassis_member_t the_member = {
    sizeof the_member, 2, STR("objective"), STR(CHASSIS_PLUGIN_ID), STR("a hinge on mean log-probabilities"), options};
static const chassis_member_t* member(uint32_t i) { return i == 0 ? &the_member : NULL; }
static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                chassis_instance_t** out) {
  static const chassis_str_t service = STR(CHASSIS_OPTIONS_ID), why = STR("no such member, or out of memory");
  const chassis_options_t* given = host->get_service(host, service);
  hinge_t* self = is(kind, "objective") && is(id, CHASSIS_PLUGIN_ID) ? calloc(1, sizeof *self) : NULL;
  if (self == NULL) return host->status_new(host, CHASSIS_NOT_FOUND, why, NULL);
  self->base = (chassis_instance_t){sizeof self->base, 0, NULL, get_interface, NULL, NULL, NULL, NULL, destroy};
  chassis_status_t* failed = given->get_float(given, options[0].name, &self->margin);
  if (failed == NULL) failed = given->get_float(given, options[1].name, &self->beta);
  if (failed == NULL) *out = &self->base;
  if (failed != NULL) free(self);
  return failed;
}
static const chassis_factory_t factory = {sizeof factory, 1, member, create};
chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t* host, const chassis_factory_t** out) {
  (void)host;
  *out = &factory;
  return NULL;
}
