// A plan as JSON.
#include "host/base/json.hpp"
#include "host/plan/plan_report.hpp"

namespace chassis {
namespace {

Json memory_json(const PlanMemory& memory) {
  Json parts = Json::object();
  for (size_t i = 0; i < kNumPlanCategories; ++i)
    parts[std::string(plan_category_name(static_cast<PlanCategory>(i)))] = {
        {"peak", memory.categories[i].peak_bytes}, {"at_peak", memory.categories[i].bytes_at_total_peak}};
  return {{"peak", memory.peak_bytes}, {"categories", std::move(parts)}};
}

Json rank_json(const RankPlan& rank) {
  Json traffic = Json::array();
  for (const CommCount& count : rank.traffic)
    traffic.push_back({{"group", count.group}, {"op", count.op}, {"calls", count.calls}, {"bytes", count.bytes}});
  return {{"rank", rank.rank},
          {"ranks", rank.ranks},
          {"step", memory_json(rank.step)},
          {"start", memory_json(rank.start)},
          {"load_peak", rank.load_peak_bytes},
          {"export_peak", rank.export_peak_bytes},
          {"host_peak", rank.host_peak_bytes},
          {"peak", rank.peak_bytes()},
          {"traffic", std::move(traffic)}};
}

Json advice_json(const Advice& advice) {
  Json traffic = Json::array();
  for (const TrafficChange& t : advice.traffic)
    traffic.push_back({{"group", t.group}, {"before", t.before}, {"after", t.after}});
  return {{"change", advice.change},      {"overrides", advice.overrides}, {"world_size", advice.world_size},
          {"peak", advice.peak_bytes},    {"saved", advice.saved_bytes},   {"fits", advice.fits},
          {"traffic", std::move(traffic)}};
}

Json pipeline_json(const PlanPipeline& pipeline) {
  Json stages = Json::array();
  for (size_t i = 0; i < pipeline.stages.size(); ++i)
    stages.push_back({{"units", pipeline.stages[i]}, {"rank", pipeline.ranks[i]}});
  return {{"stages", std::move(stages)},
          {"most_in_flight", pipeline.most_in_flight},
          {"bubble_share", pipeline.bubble_share}};
}

// The number of blocks at the start of a chain that are recomputed; null if all or none are.
Json some_blocks(const Recompute& recompute) {
  const int64_t blocks = recompute.full > 0 ? recompute.full : recompute.selective;
  return blocks == 0 || blocks == Recompute::kAll ? Json() : Json(blocks);
}

}  // namespace

Json plan_json(const Plan& plan, const AdviceList* advice) {
  Json axes = Json::object();
  for (const MeshAxis& axis : plan.axes) axes[axis.name] = axis.size;
  Json ranks = Json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(rank_json(rank));
  const bool mixed = plan.recompute.full > 0 && plan.recompute.selective > 0;
  Json modes = Json::object();
  for (const auto& [mode, step] : plan.modes) modes[text(mode)] = memory_json(step);
  Json out = {{"schema", "chassis.plan/1"},
              {"name", plan.name},
              {"device", plan.device},
              {"compute", plan.compute},
              {"world_size", plan.world_size},
              {"mesh", std::move(axes)},
              {"strategies", plan.strategies},
              {"parameters", plan.num_parameters},
              {"trained", plan.num_trained},
              {"seq_len", plan.seq_len},
              {"micro_batch_size", plan.batch.micro_batch_size},
              {"global_batch_size", plan.batch.global_batch_size},
              {"num_microbatches", plan.batch.num_microbatches},
              {"recompute", text(plan.recompute.strongest())},
              {"recompute_blocks", some_blocks(plan.recompute)},
              {"recompute_others", mixed ? Json("selective") : Json()},
              {"recompute_modes", std::move(modes)},
              {"pipeline", plan.pipeline ? pipeline_json(*plan.pipeline) : Json()},
              {"saving_proven", plan.proven_saving},
              {"memory_limit", plan.memory_bytes},
              {"fits", plan.fits()},
              {"ranks", std::move(ranks)}};
  if (!advice) return out;
  Json single = Json::array(), refused = Json::array();
  for (const Advice& one : advice->single) single.push_back(advice_json(one));
  for (const auto& [change, reason] : advice->refused) refused.push_back({{"change", change}, {"reason", reason}});
  out["advice"] = {{"single", std::move(single)}, {"refused", std::move(refused)}};
  if (advice->together) out["advice"]["together"] = advice_json(*advice->together);
  return out;
}

}  // namespace chassis
