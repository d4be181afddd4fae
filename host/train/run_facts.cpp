// The composition (plugins, versions, hashes, who computes what) is in plugins.lock, the configuration in
// resolved.toml.
#include "host/train/run_facts.hpp"

#include <fmt/format.h>

#include "host/base/json.hpp"
#include "host/base/units.hpp"
#include "host/service/device.hpp"
#include "host/service/threads.hpp"
#include "host/session/run_mesh.hpp"

namespace chassis {

Json run_facts(Session& session, const RunFacts& facts) {
  const Settings& settings = session.settings();
  const auto all = static_cast<double>(session.parameters().num_elements(false));
  const auto trained = static_cast<double>(session.parameters().num_elements(true));
  std::string strategies, model;
  for (const PluginSlot& slot : session.config().plugin_slots()) {
    if (slot.kind == "parallel") strategies += (strategies.empty() ? "" : " + ") + slot.plugin;
    if (slot.kind == "model") model = slot.plugin;
  }
  Json json = {
      {"schema", "chassis.run/1"},
      {"version", CHASSIS_VERSION},
      {"model", model},
      {"parameters", all},
      {"parameters_trained", trained},
      {"parameters_text", trained < all ? fmt::format("{} parameters, {} trained", count_text(all), count_text(trained))
                                        : count_text(all) + " parameters"},
      {"device", device_name(session.device())},
      {"threads", num_threads()},
      {"world_size", session.world().size()},
      {"mesh", session.world().size() > 1 ? divided_axes(session.mesh()) : "one rank"},
      {"strategies", strategies},
      {"compute", dtype_name(session.compute())},
      {"max_steps", facts.max_steps},
      {"rows_per_step", facts.rows_per_step},
      {"tokens_per_row", *settings.train.seq_len},
      {"flops_per_token", facts.flops_per_token},
      {"needed_flops_per_token", facts.needed_flops_per_token},
      {"peak_flops", facts.peak_flops},
      {"packing", to_text(facts.data.packing())},
      {"rows_per_epoch", facts.data.num_rows_per_epoch()}};
  Json& sets = json["data"] = Json::array();
  for (size_t i = 0; i < facts.data.sets().size(); ++i) {
    const RowSource& set = facts.data.sets()[i];
    sets.push_back({{"path", set.config().path},
                    {"too_long_documents", set.num_long_documents()},
                    {"usable_documents", set.num_usable_documents()},
                    {"usable_tokens", set.num_usable_tokens()}});
  }
  if (facts.plan) {
    Json categories = Json::object();
    for (size_t i = 0; i < kNumPlanCategories; ++i)
      categories[std::string(plan_category_name(static_cast<PlanCategory>(i)))] =
          facts.plan->step.categories[i].peak_bytes;
    json["plan"] = {{"peak_bytes", facts.plan->start.peak_bytes}, {"categories", std::move(categories)}};
  }
  return json;
}

}  // namespace chassis
