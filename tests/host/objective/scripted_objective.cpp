// An objective that describes itself, and computes, as the environment variable SCRIPT says, in words such as
// "units=9 grad_logp=nan", for objective_plugin_test.cpp.
#include <array>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "chassis/guard.hpp"
#include "chassis/kind/objective.h"
#include "chassis/member.hpp"
#include "chassis/plugin.hpp"
#include "chassis/sized.hpp"

namespace {

using namespace chassis;

class ScriptedObjective final : public Member {
 public:
  static constexpr std::string_view kKind = "objective";
  static constexpr std::string_view kDoc = "test: an objective that follows a script";

  explicit ScriptedObjective(const Host& host) : Member(host) {}

  // The host copies the table.
  template <typename T>
  static const void* interface(std::string_view id) {
    static chassis_objective_t table;
    read_script();
    table = {sizeof table,
             0,
             has("no_describe") ? nullptr : &describe_entry,
             has("prepare") ? &prepare_entry : nullptr,
             &evaluate_entry,
             has("metrics") ? &metrics_entry : nullptr};
    return id == CHASSIS_OBJECTIVE_ID ? &table : nullptr;
  }

 private:
  static std::map<std::string, std::string>& script() {
    static std::map<std::string, std::string> words;
    return words;
  }
  static void read_script() {
    script().clear();
    const char* text = std::getenv("SCRIPT");
    std::istringstream words(text != nullptr ? text : "");
    for (std::string word; words >> word;)
      script()[word.substr(0, word.find('='))] = word.find('=') == word.npos ? "" : word.substr(word.find('=') + 1);
  }
  static bool has(const std::string& name) { return script().contains(name); }
  static uint32_t number(const std::string& name, uint32_t usual) {
    return has(name) ? static_cast<uint32_t>(std::stoul(script()[name])) : usual;
  }
  static chassis_str_t name(const std::string& which, std::string_view usual) {
    return str(has(which) ? std::string_view(script()[which]) : usual);
  }

  static chassis_status_t* describe_entry(chassis_instance*, chassis_objective_desc_t* out) {
    static const std::string long_name(129, 'x');
    static std::array<chassis_objective_term_t, 2> terms;
    static std::array<chassis_objective_metric_t, 2> metrics;
    terms = {
        {{name("term0", "margin"), number("count0", CHASSIS_COUNT_UNITS), 0},
         {has("long_name") ? str(long_name) : name("term1", "nll"), number("count1", CHASSIS_COUNT_SEQUENCES), 0}}};
    metrics = {{{name("metric0", "rewards/chosen"), CHASSIS_BETTER_HIGHER, 0},
                {name("metric1", "rewards/rejected"), number("better1", CHASSIS_BETTER_LOWER), 0}}};
    if (has("null_name")) metrics[1].name.ptr = nullptr;
    write_sized<chassis_objective_desc_t>(
        {0, number("values", CHASSIS_OBJECTIVE_LOGPS), number("units", CHASSIS_OBJECTIVE_PAIRS), number("needs", 0),
         number("num_scores", 0), number("num_targets", 0), number("num_terms", 2), number("num_metrics", 2),
         has("null_terms") ? nullptr : terms.data(), metrics.data(), number("num_sums", 4), number("state_size", 0),
         number("state_per_sequence", 0), number("num_classes", 0), number("top_k", 0), 0,
         static_cast<double>(number("temperature", 0))},
        out);
    return nullptr;
  }

  static chassis_status_t* prepare_entry(chassis_instance*, const chassis_objective_batch_t* global, double* state,
                                         double* sequence_state) {
    if (has("state")) state[1] = std::stod(script()["state"]);
    if (has("sequence_state")) sequence_state[2] = std::stod(script()["sequence_state"]);
    state[0] =
        static_cast<double>(global->num_sequences) + (global->state != nullptr || global->term_weight != nullptr);
    return nullptr;
  }

  // The first sum has a bit for each array of the batch that is not NULL, in the order of the header.
  static chassis_status_t* evaluate_entry(chassis_instance*, const chassis_objective_batch_t* b,
                                          const chassis_objective_result_t* out) {
    if (has("throws")) throw std::runtime_error("no idea");
    uint32_t bits = 0, bit = 1;
    for (const bool is_given :
         {b->role != nullptr, b->unit != nullptr, b->target != nullptr, b->margin != nullptr, b->logp != nullptr,
          b->reference_logp != nullptr, b->length != nullptr, b->score != nullptr, b->first_token != nullptr,
          b->token_logp != nullptr, b->reference_token_logp != nullptr, b->old_token_logp != nullptr,
          b->state != nullptr, b->sequence_state != nullptr, b->term_weight != nullptr}) {
      if (is_given) bits |= bit;
      bit <<= 1;
    }
    out->sums[0] = bits;
    out->sums[1] = out->grad_logp != nullptr || out->grad_score != nullptr || out->grad_token_logp != nullptr;
    const std::pair<const char*, double*> results[] = {{"terms", out->terms},
                                                       {"sums", out->sums},
                                                       {"grad_logp", out->grad_logp},
                                                       {"grad_score", out->grad_score},
                                                       {"grad_token_logp", out->grad_token_logp}};
    for (const auto& [array, values] : results)
      if (has(array) && values != nullptr) values[1] = std::stod(script()[array]);
    return nullptr;
  }

  static chassis_status_t* metrics_entry(chassis_instance*, const double* sums, double* out) {
    out[0] = sums[0] + sums[3];
    out[1] = std::stod(script()["metrics"]);
    return nullptr;
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", ScriptedObjective)
