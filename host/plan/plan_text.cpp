// A plan as text for the terminal.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "host/base/units.hpp"
#include "host/plan/plan_report.hpp"

namespace chassis {
namespace {

// The least and the most that a rank needs, and the rank that needs most.
struct Extent {
  uint64_t least = UINT64_MAX, most = 0;
  const RankPlan* largest = nullptr;
};

template <typename Bytes>
Extent extent_of(const Plan& plan, const Bytes& bytes) {
  Extent out;
  for (const RankPlan& rank : plan.ranks) {
    const uint64_t value = bytes(rank);
    out.least = std::min(out.least, value);
    if (!out.largest || value > out.most) out.most = value, out.largest = &rank;
  }
  return out;
}

// Pads to display columns; the text may contain non-ASCII characters.
std::string padded(const std::string& text, size_t columns) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return text + std::string(width < columns ? columns - width : 0, ' ');
}

class Text {
 public:
  Text(const Plan& plan, const AdviceList* advice) : plan_(plan), advice_(advice) {}

  std::string run() {
    heading();
    table();
    traffic();
    verdict();
    if (advice_) advice();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(const char* key, fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format("{:<12}{}\n", key, fmt::format(format, std::forward<Args>(args)...));
  }

  void heading() {
    const std::string trained =
        plan_.num_trained == plan_.num_parameters
            ? "all"
            : fmt::format("{} ({:.2g} %)", count_text(static_cast<double>(plan_.num_trained)),
                          100.0 * static_cast<double>(plan_.num_trained) / static_cast<double>(plan_.num_parameters));
    line("plan", "{}{} parameters, {} trained; {} on {}, {}", plan_.name.empty() ? "" : plan_.name + ": ",
         count_text(static_cast<double>(plan_.num_parameters)), trained, plan_.compute, plan_.device,
         plan_.world_size == 1 ? "one rank" : std::to_string(plan_.world_size) + " ranks");
    if (plan_.world_size > 1) line("strategy", "{} over {}", plan_.strategies, plan_.mesh);
    line("step", "{} rows of {} tokens, {} × {} on each rank", plan_.batch.global_batch_size, plan_.seq_len,
         plan_.batch.num_microbatches, plan_.batch.micro_batch_size);
    if (plan_.pipeline) pipeline(*plan_.pipeline);
    if (plan_.world_size > 1 && plan_.ranks.size() == 1)
      line("ranks", "all store the same amount of every tensor: rank 0 was rehearsed for all");
    for (size_t i = 0; plan_.ranks.size() > 1 && i < plan_.ranks.size(); ++i)
      line(i == 0 ? "ranks" : "", "{}: rank {} was rehearsed for all", ranks_text(plan_.ranks[i].ranks),
           plan_.ranks[i].rank);
    if (!plan_.proven_saving) line("saving", "not proven: too many shards to prove it here");
    out_ += "\n";
  }

  void pipeline(const PlanPipeline& pipeline) {
    constexpr size_t kMostListed = 16;
    const std::vector<double>& kept = pipeline.most_in_flight;
    const auto [least, most] = std::ranges::minmax(kept);
    line("pipeline", "ranks wait {:.3g} % of a step; they keep {} micro-batches", 100.0 * pipeline.bubble_share,
         kept.size() > kMostListed ? fmt::format("{:.3g} to {:.3g}", least, most)
                                   : fmt::format("{:.3g}", fmt::join(kept, ", ")));
    for (size_t stage = 0; stage < pipeline.stages.size(); ++stage)
      line("", "stage {} on rank {} of the pipeline: {}", stage, pipeline.ranks[stage], pipeline.stages[stage]);
  }

  template <typename Bytes>
  void row(const std::string& name, const Bytes& bytes) {
    const Extent extent = extent_of(plan_, bytes);
    if (extent.most == 0) return;
    const bool same = plan_.ranks.size() == 1;
    out_ += fmt::format("{:<34}{:>10}", name, bytes_text(extent.most));
    if (!same) out_ += fmt::format("{:>12}   {}", bytes_text(extent.least), ranks_text(extent.largest->ranks));
    out_ += "\n";
  }

  void table() {
    if (plan_.ranks.size() == 1)
      out_ += fmt::format("{:<34}{:>10}\n", "each rank", "most");
    else
      out_ += fmt::format("{:<34}{:>10}{:>12}   {}\n", "bytes of a rank", "most", "least", "most on");
    for (size_t i = 0; i < kNumPlanCategories; ++i) {
      const auto category = static_cast<PlanCategory>(i);
      std::string name(plan_category_name(category));
      if (category == PlanCategory::kActivations) name += ", recompute " + text(plan_.recompute.strongest());
      if (category == PlanCategory::kGathered) name += " units, prefetch";
      if (category == PlanCategory::kCommunication) name += " buffers";
      if (category == PlanCategory::kOther) name += ": batch, buckets";
      row(name, [&](const RankPlan& rank) { return rank.step.of(category).peak_bytes; });
    }
    row("peak of a step", [](const RankPlan& rank) { return rank.step.peak_bytes; });
    row("peak of the first step",
        [](const RankPlan& rank) { return rank.start.peak_bytes > rank.step.peak_bytes ? rank.start.peak_bytes : 0; });
    row("peak of loading", [](const RankPlan& rank) { return rank.load_peak_bytes; });
    row("peak of saving, exporting", [](const RankPlan& rank) { return rank.export_peak_bytes; });
    row("memory of the host", [](const RankPlan& rank) { return rank.host_peak_bytes; });
    out_ += "\n";
    const auto by_peak = [](const RankPlan& a, const RankPlan& b) { return a.step.peak_bytes < b.step.peak_bytes; };
    const PlanMemory& mine = std::max_element(plan_.ranks.begin(), plan_.ranks.end(), by_peak)->step;
    std::string others;
    for (const auto& [mode, step] : plan_.modes)
      if (mode != plan_.recompute)
        others += fmt::format("; {}: {}, {}", text(mode), bytes_text(step.of(PlanCategory::kActivations).peak_bytes),
                              bytes_text(step.peak_bytes));
    line("recompute", "{}: activations {}, peak {}{}", text(plan_.recompute),
         bytes_text(mine.of(PlanCategory::kActivations).peak_bytes), bytes_text(mine.peak_bytes), others);
  }

  void traffic() {
    const char* key = "traffic";
    for (const Traffic& group : largest_traffic(plan_.ranks)) {
      line(key, "{}: {} a step from each rank: {}", group.group, bytes_text(group.bytes), group.text);
      key = "";
    }
  }

  void verdict() {
    if (plan_.memory_bytes == 0) return;
    const uint64_t needed = plan_.largest().peak_bytes();
    if (plan_.fits())
      line("memory", "fits: {} of {}", bytes_text(needed), bytes_text(plan_.memory_bytes));
    else
      line("memory", "does not fit: {} of {}, {} too much", bytes_text(needed), bytes_text(plan_.memory_bytes),
           bytes_text(needed - plan_.memory_bytes));
  }

  void advice() {
    size_t columns = 0;
    for (const Advice& advice : advice_->single) columns = std::max(columns, padded(advice.change, 0).size());
    const char* key = "advice";
    if (advice_->single.empty()) line(key, "no single change saves memory");
    for (const Advice& advice : advice_->single) {
      line(key, "{}  −{}, to {}{}{}", padded(advice.change, columns),
           bytes_text(static_cast<uint64_t>(advice.saved_bytes)), bytes_text(advice.peak_bytes),
           advice.fits ? ": fits" : "", traffic_change_text(advice));
      key = "";
    }
    if (const auto& all = advice_->together)
      line("together", "{}  −{}, to {}{}{}", all->change, bytes_text(static_cast<uint64_t>(all->saved_bytes)),
           bytes_text(all->peak_bytes), all->fits ? ": fits" : ", which does not fit either",
           traffic_change_text(*all));
  }

  const Plan& plan_;
  const AdviceList* advice_;
  std::string out_;
};

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string traffic_change_text(const Advice& advice) {
  uint64_t before = 0, after = 0;
  std::string groups;
  for (const TrafficChange& t : advice.traffic) {
    before += t.before, after += t.after;
    if (t.before == t.after) continue;
    groups += fmt::format("{}{} {}{}", groups.empty() ? "" : ", ", t.group, t.after > t.before ? "+" : "−",
                          bytes_text(std::max(t.before, t.after) - std::min(t.before, t.after)));
  }
  if (groups.empty()) return "";
  if (before == 0) return "; traffic: " + groups;
  const double percent = 100.0 * std::abs(static_cast<double>(after) / static_cast<double>(before) - 1.0);
  const char* const sign = after < before ? "−" : "+";
  return fmt::format("; traffic {}{:.{}f} %: {}", sign, percent, percent < 9.95 ? 1 : 0, groups);
}

std::string plan_text(const Plan& plan, const AdviceList* advice) { return Text(plan, advice).run(); }

}  // namespace chassis
