// Plans the run again with each change alone, then with several.
#include "host/plan/plan_advice.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "host/base/log_capture.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/plan/plan_traffic.hpp"

namespace chassis {
namespace {

// The minimum gain, as a fraction of the peak; smaller gains are left out.
constexpr double kMinGain = 0.002;

// The largest tensor axis that is proposed. Its ranks send most, and a machine seldom has more devices.
constexpr int64_t kLargestTensorAxis = 8;

struct Change {
  struct Scale {
    std::string axis;
    int64_t times = 1, parts = 1;  // the size becomes size * times / parts
  };

  std::string text;  // describes what `overrides` change
  std::vector<std::string> overrides;
  int world_factor = 1;
  bool changes_training = false;
  std::vector<Scale> scales = {};
  std::string strategy = {};  // strategy to add
};

// The mesh and the strategies after some changes.
struct ChangedMesh {
  std::string text;
  std::vector<std::string> overrides;
};

std::string setting(const std::string& key, const std::string& json) { return key + "=" + json; }

class Adviser {
 public:
  Adviser(const PlanRequest& request, const Plan& plan)
      : request_(request), plan_(plan), base_bytes_(plan.largest().peak_bytes()) {}

  AdviceList run() {
    collect();
    for (const Change& change : changes_)
      if (auto advice = attempt({&change})) found_.emplace_back(&change, std::move(*advice));
    for (const auto& [axis, strategy] : plan_.longer_axes) lengthen(axis, strategy);
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) { return a.second.saved_bytes > b.second.saved_bytes; });
    if (!plan_.fits() && std::none_of(found_.begin(), found_.end(), [](const auto& found) {
          return found.second.fits && !found.second.changes_training;
        }))
      combine();
    for (auto& [change, advice] : found_) list_.single.push_back(std::move(advice));
    return std::move(list_);
  }

 private:
  void collect() {
    const BlockRecompute now = plan_.recompute.strongest();
    for (const RecomputeModeSpec& spec : kRecomputeModes)
      if (spec.mode > now) add("recompute.mode", fmt::format("\"{}\"", text(now)), fmt::format("\"{}\"", spec.name));
    const int64_t rows = plan_.batch.micro_batch_size;
    if (rows % 2 == 0)
      changes_.push_back(
          {fmt::format("train.micro_batch_size {} → {}", rows, rows / 2),
           {fmt::format("train.micro_batch_size={}", rows / 2), global_batch(plan_.batch.global_batch_size)}});
    for (const auto& [key, json] : plan_.savings) add(key, "", json);
    for (const std::string& id : plan_.other_strategies)  // with the defaults of their options
      changes_.push_back(
          {fmt::format("strategy {} → {}", plan_.strategies, id), {fmt::format("parallel=[{{plugin=\"{}\"}}]", id)}});
    for (const auto& [id, shown] : plan_.adapters)
      change_training("adapter " + shown, {fmt::format("adapter.plugin={}", id)});
    if (plan_.adapters.empty()) change_training("", {});
    move_replicas_to_shards();
    double_shards();
  }

  // Adds an adapter, and the same adapter with a quantized base. Without `text`, adds only the quantization.
  void change_training(const std::string& text, const std::vector<std::string>& overrides) {
    if (!text.empty()) changes_.push_back({text, overrides, 1, true});
    for (const std::string& id : plan_.quants) {
      Change& change = changes_.emplace_back(Change{text, overrides, 1, true});
      change.text += (text.empty() ? "quant " : " + quant ") + id;
      change.overrides.push_back(fmt::format("quant.plugin={}", id));
    }
  }

  void add(const std::string& key, const std::string& from, const std::string& json) {
    changes_.push_back({fmt::format("{} = {}", key, json), {setting(key, json)}});
    if (from.empty()) return;
    changes_.back().text = fmt::format("{} {} → {}", key, from, json);
  }

  static std::string global_batch(int64_t rows) { return fmt::format("train.global_batch_size={}", rows); }

  int64_t axis(std::string_view name) const {
    for (const MeshAxis& known : plan_.axes)
      if (known.name == name) return known.size;
    return 1;
  }

  void move_replicas_to_shards() {
    if (axis(kReplicaAxis) % 2 != 0) return;
    changes_.push_back({"", {}, 1, false, {{std::string(kReplicaAxis), 1, 2}, {std::string(kShardAxis), 2, 1}}});
  }

  // Doubles the number of ranks.
  void double_shards() { changes_.push_back({"", {}, 2, false, {{std::string(kShardAxis), 2, 1}}}); }

  // Makes an axis longer and the axes that divide the batch shorter: to the smallest size that fits, else to the size
  // that saves most.
  void lengthen(const std::string& name, const std::string& strategy) {
    std::optional<std::pair<const Change*, Advice>> best;
    Change change{"", {}, 1, false, {{name, 1, 1}}, strategy};
    std::map<std::string, int64_t> data = {{std::string(kShardAxis), axis(kShardAxis)},
                                           {std::string(kReplicaAxis), axis(kReplicaAxis)}};
    for (int64_t times = 2; times <= 8; times *= 2) {
      if (is_tensor_axis(name) && axis(name) * times > kLargestTensorAxis) break;
      const std::string_view shorter = data[std::string(kShardAxis)] % 2 == 0 ? kShardAxis : kReplicaAxis;
      if (data[std::string(shorter)] % 2 != 0) break;
      data[std::string(shorter)] /= 2;
      change.scales[0].times = times;
      change.scales.push_back({std::string(shorter), 1, 2});
      const Change* const tried = &changes_.emplace_back(change);
      const size_t num_refused = list_.refused.size();
      auto advice = attempt({tried});
      if (list_.refused.size() > num_refused) break;
      if (advice && (!best || advice->fits || advice->saved_bytes > best->second.saved_bytes))
        best.emplace(tried, std::move(*advice));
      if (best && best->second.fits) break;
    }
    if (best) found_.push_back(std::move(*best));
  }

  // Returns nothing if a size cannot be divided. The global batch stays the same, unless more ranks cannot divide it.
  std::optional<ChangedMesh> changed_mesh(const std::vector<const Change*>& changes) const {
    ChangedMesh out;
    std::map<std::string, int64_t> sizes;
    std::string strategies;
    int64_t world_factor = 1, data_ranks = 1, num_strategies = static_cast<int64_t>(plan_.num_strategies);
    for (const MeshAxis& known : plan_.axes) sizes[known.name] = known.size;
    for (const Change* change : changes) {
      world_factor *= change->world_factor;
      for (const Change::Scale& scale : change->scales) {
        int64_t& size = sizes.try_emplace(scale.axis, 1).first->second;
        if (size * scale.times % scale.parts != 0) return std::nullopt;
        size = size * scale.times / scale.parts;
      }
      if (change->strategy.empty()) continue;
      out.overrides.push_back(fmt::format("parallel.{}.plugin=\"{}\"", num_strategies++, change->strategy));
      strategies += (strategies.empty() ? "" : ", ") + change->strategy;
    }
    if (world_factor > 1) out.text = fmt::format("{} → {} ranks", plan_.world_size, world_factor * plan_.world_size);
    for (const bool grows : {true, false})
      for (const auto& [name, size] : sizes) {
        const int64_t before = axis(name);
        if (size == before || (size > before) != grows) continue;
        out.text += fmt::format("{}{} {} → {}", out.text.empty() ? "" : ", ", mesh_key(name), before, size);
        if (grows && !strategies.empty()) out.text += fmt::format(" ({})", std::exchange(strategies, ""));
        out.overrides.push_back(fmt::format("{}={}", mesh_key(name), size));
      }
    if (out.text.empty()) return out;
    for (const auto& [name, size] : sizes)
      if (divides_rows(name)) data_ranks *= size;
    const int64_t rows = plan_.batch.global_batch_size;
    const bool divides = rows % (plan_.batch.micro_batch_size * data_ranks) == 0 || world_factor == 1;
    out.overrides.push_back(global_batch(divides ? rows : world_factor * rows));
    if (!divides) out.text += fmt::format(", train.global_batch_size {} → {}", rows, world_factor * rows);
    return out;
  }

  // Returns nothing if the configuration refuses the changes or if they save nothing.
  std::optional<Advice> attempt(const std::vector<const Change*>& changes) {
    PlanRequest request = request_;
    request.header_bytes = plan_.header_bytes;
    request.world_size = plan_.world_size;
    request.compares_modes = false;
    const std::optional<ChangedMesh> mesh = changed_mesh(changes);
    if (!mesh) return std::nullopt;
    Advice advice;
    advice.change = mesh->text;
    for (const Change* change : changes) {
      if (!change->text.empty()) advice.change += (advice.change.empty() ? "" : " + ") + change->text;
      advice.overrides.insert(advice.overrides.end(), change->overrides.begin(), change->overrides.end());
      advice.changes_training |= change->changes_training;
      request.world_size *= change->world_factor;
    }
    advice.overrides.insert(advice.overrides.end(), mesh->overrides.begin(), mesh->overrides.end());
    request.overrides.insert(request.overrides.end(), advice.overrides.begin(), advice.overrides.end());
    try {
      const log::CapturedWarnings known;  // the plan itself has already logged them
      const Plan plan = make_plan(request);
      advice.world_size = plan.world_size;
      advice.peak_bytes = plan.largest().peak_bytes();
      advice.fits = plan.fits();
      advice.traffic = changes_of_traffic(plan);
    } catch (const Error& error) {
      if (changes.size() == 1) list_.refused.emplace_back(advice.change, error.message());
      return std::nullopt;
    }
    advice.saved_bytes = static_cast<int64_t>(base_bytes_) - static_cast<int64_t>(advice.peak_bytes);
    if (static_cast<double>(advice.saved_bytes) < kMinGain * static_cast<double>(base_bytes_)) return std::nullopt;
    return advice;
  }

  // The changes in all groups; empty if no bytes change.
  std::vector<TrafficChange> changes_of_traffic(const Plan& plan) const {
    std::vector<TrafficChange> out;
    const auto at = [&](const std::string& group) -> TrafficChange& {
      const auto known = std::ranges::find(out, group, &TrafficChange::group);
      return known == out.end() ? out.emplace_back(TrafficChange{group}) : *known;
    };
    for (const Traffic& traffic : largest_traffic(plan_.ranks)) at(traffic.group).before = traffic.bytes;
    for (const Traffic& traffic : largest_traffic(plan.ranks)) at(traffic.group).after = traffic.bytes;
    if (std::ranges::all_of(out, [](const TrafficChange& t) { return t.before == t.after; })) out.clear();
    return out;
  }

  // Adds one change after another, and keeps those that increase the gain. Tries more ranks late, and changes of the
  // training last. It takes one of those: the smallest that is enough.
  void combine() {
    std::vector<const Change*> order;
    for (const int world_factor : {1, 2})
      for (const auto& [change, advice] : found_)
        if (!change->changes_training && change->world_factor == world_factor) order.push_back(change);
    for (auto found = found_.rbegin(); found != found_.rend(); ++found)
      if (found->first->changes_training) order.push_back(found->first);
    std::vector<const Change*> taken;
    for (const Change* change : order) {
      std::vector<const Change*> tried = taken;
      if (change->changes_training) std::erase_if(tried, [](const Change* other) { return other->changes_training; });
      tried.push_back(change);
      auto advice = attempt(tried);
      const uint64_t before = list_.together ? list_.together->peak_bytes : base_bytes_;
      if (!advice || static_cast<double>(advice->peak_bytes) > (1.0 - kMinGain) * static_cast<double>(before)) continue;
      taken = std::move(tried);
      list_.together = std::move(advice);
      if (list_.together->fits) return;
    }
    if (taken.size() < 2) list_.together.reset();
  }

  const PlanRequest& request_;
  const Plan& plan_;
  const uint64_t base_bytes_;
  std::deque<Change> changes_;
  std::vector<std::pair<const Change*, Advice>> found_;  // changes that save something
  AdviceList list_;
};

}  // namespace

AdviceList advise(const PlanRequest& request, const Plan& plan) { return Adviser(request, plan).run(); }

}  // namespace chassis
