// Plans the run again with each change alone, then with several.
#include "host/plan/plan_advice.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "host/base/log_capture.hpp"
#include "host/base/mesh_axes.hpp"

namespace chassis {
namespace {

// Smaller gains, as a fraction of the peak, are left out.
constexpr double kMinGain = 0.002;

struct Change {
  std::string text;
  std::vector<std::string> overrides;
  int world_factor = 1;
  bool changes_training = false;
};

std::string setting(const std::string& key, const std::string& json) { return key + "=" + json; }

class Adviser {
 public:
  Adviser(const PlanRequest& request, const Plan& plan)
      : request_(request), plan_(plan), base_bytes_(plan.largest().peak_bytes()) {}

  AdviceList run() {
    collect();
    for (const Change& change : changes_)
      if (auto advice = attempt({&change})) list_.single.push_back(std::move(*advice));
    std::stable_sort(list_.single.begin(), list_.single.end(),
                     [](const Advice& a, const Advice& b) { return a.saved_bytes > b.saved_bytes; });
    if (std::none_of(list_.single.begin(), list_.single.end(),
                     [](const Advice& a) { return a.fits && !a.changes_training; }))
      combine();
    return std::move(list_);
  }

 private:
  void collect() {
    const std::string mode = '"' + text(plan_.recompute.strongest()) + '"';
    if (plan_.recompute == Recompute::kNone) add("recompute.mode", mode, "\"selective\"");
    if (plan_.recompute.strongest() != BlockRecompute::kFull) add("recompute.mode", mode, "\"full\"");
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

  // An adapter, and the same with its base in fewer bits; or that alone.
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

  static std::string size_of(std::string_view axis, int64_t size) { return fmt::format("{}={}", mesh_key(axis), size); }
  static std::string global_batch(int64_t rows) { return fmt::format("train.global_batch_size={}", rows); }

  int64_t axis(std::string_view name) const {
    for (const MeshAxis& known : plan_.axes)
      if (known.name == name) return known.size;
    return 1;
  }

  void move_replicas_to_shards() {
    const int64_t replicas = axis(kReplicaAxis), shards = axis(kShardAxis);
    if (replicas % 2 != 0) return;
    changes_.push_back({fmt::format("{} {} → {}, {} {} → {}", mesh_key(kReplicaAxis), replicas, replicas / 2,
                                    mesh_key(kShardAxis), shards, 2 * shards),
                        {size_of(kReplicaAxis, replicas / 2), size_of(kShardAxis, 2 * shards)}});
  }

  // On twice as many ranks; the global batch stays if it can be divided among them.
  void double_shards() {
    const int64_t shards = axis(kShardAxis);
    const int64_t rows = plan_.batch.global_batch_size;
    const int64_t per_pass = plan_.batch.micro_batch_size * axis(kReplicaAxis) * 2 * shards;
    const bool divides = rows % per_pass == 0;
    Change change{fmt::format("{} → {} ranks, {} {} → {}", plan_.world_size, 2 * plan_.world_size, mesh_key(kShardAxis),
                              shards, 2 * shards),
                  {size_of(kShardAxis, 2 * shards), global_batch(divides ? rows : 2 * rows)},
                  2};
    if (!divides) change.text += fmt::format(", train.global_batch_size {} → {}", rows, 2 * rows);
    changes_.push_back(std::move(change));
  }

  // Empty if the configuration refuses the changes or they save nothing.
  std::optional<Advice> attempt(const std::vector<const Change*>& changes) {
    PlanRequest request = request_;
    request.header_bytes = plan_.header_bytes;
    request.world_size = plan_.world_size;
    request.compares_modes = false;
    Advice advice;
    for (const Change* change : changes) {
      advice.change += (advice.change.empty() ? "" : " + ") + change->text;
      advice.overrides.insert(advice.overrides.end(), change->overrides.begin(), change->overrides.end());
      advice.changes_training |= change->changes_training;
      request.world_size *= change->world_factor;
    }
    request.overrides.insert(request.overrides.end(), advice.overrides.begin(), advice.overrides.end());
    try {
      const log::CapturedWarnings known;  // the plan itself has logged them
      const Plan plan = make_plan(request);
      advice.world_size = plan.world_size;
      advice.peak_bytes = plan.largest().peak_bytes();
      advice.fits = plan.fits();
    } catch (const Error& error) {
      if (changes.size() == 1) list_.refused.emplace_back(advice.change, error.message());
      return std::nullopt;
    }
    advice.saved_bytes = static_cast<int64_t>(base_bytes_) - static_cast<int64_t>(advice.peak_bytes);
    if (static_cast<double>(advice.saved_bytes) < kMinGain * static_cast<double>(base_bytes_)) return std::nullopt;
    return advice;
  }

  // Adds one change after the other, and keeps those that increase the gain. Tries more ranks late, and last what
  // changes the training, of which it takes one: the least that is enough.
  void combine() {
    std::vector<const Change*> order;
    const auto append = [&](const Advice& advice, bool changes_training, int world_factor) {
      for (const Change& change : changes_)
        if (change.text == advice.change && change.world_factor == world_factor &&
            change.changes_training == changes_training)
          order.push_back(&change);
    };
    for (const int world_factor : {1, 2})
      for (const Advice& advice : list_.single) append(advice, false, world_factor);
    for (auto advice = list_.single.rbegin(); advice != list_.single.rend(); ++advice) append(*advice, true, 1);
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
  std::vector<Change> changes_;
  AdviceList list_;
};

}  // namespace

AdviceList advise(const PlanRequest& request, const Plan& plan) { return Adviser(request, plan).run(); }

}  // namespace chassis
