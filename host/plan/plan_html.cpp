// A plan as an HTML page with inline SVG and CSS; it fetches nothing and runs no script.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/plan/plan_report.hpp"

namespace chassis {
namespace {

constexpr const char* kStyle = R"(
:root { --ink: #1c2530; --soft: #66727f; --line: #d9dee4; --paper: #ffffff; --panel: #f6f8fa; --limit: #c4262e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaef; --soft: #98a4b1; --line: #313a45; --paper: #12171d; --panel: #1a2129; --limit: #ff6b6b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 60rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.5rem 0 .6rem; }
p { margin: .25rem 0; color: var(--soft); } .verdict { font-size: 1.1rem; color: var(--ink); margin-top: .8rem; }
.verdict.bad { color: var(--limit); }
svg { display: block; width: 100%; height: auto; background: var(--panel); border-radius: 8px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg text.strong { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--line); } .limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 5 4; } text.limit-text { fill: var(--limit); }
.c0 { fill: #3b6fb6; } .c1 { fill: #e08a2e; } .c2 { fill: #5f9e52; } .c3 { fill: #c8524f; } .c4 { fill: #d9b43a; }
.c5 { fill: #7c5fa8; } .c6 { fill: #4aa3a8; } .c7 { fill: #9aa3ad; } .gain { fill: #5f9e52; } .rest { fill: #3b6fb6; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 0 0 .7rem; font-size: .86rem; color: var(--soft); }
.legend svg { width: .8rem; height: .8rem; display: inline-block; border-radius: 2px; margin-right: .35rem; vertical-align: -1px; background: none; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: right; color: var(--soft); font-weight: 500; } td { text-align: right; }
th, td { padding: .28rem .6rem; border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; padding-left: 0; }
)";

constexpr double kWidth = 940, kLeft = 150, kRight = 90;
constexpr size_t kMaxLabel = 22;  // characters left of kLeft

// Bytes to pixels, with ticks at round numbers.
class Scale {
 public:
  Scale(uint64_t most, double begin, double end) : begin_(begin), end_(end) {
    const double unit = std::pow(1024.0, std::floor(std::log2(std::max<double>(1, static_cast<double>(most))) / 10.0));
    const double rough = static_cast<double>(std::max<uint64_t>(1, most)) / unit / 5.0;
    const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
    for (const double step : {1.0, 2.0, 5.0, 10.0}) {
      tick_ = step * magnitude * unit;
      if (step * magnitude >= rough) break;
    }
    top_ = std::ceil(static_cast<double>(std::max<uint64_t>(1, most)) / tick_) * tick_;
  }
  double at(double bytes) const { return begin_ + (end_ - begin_) * bytes / top_; }
  double at(uint64_t bytes) const { return at(static_cast<double>(bytes)); }
  std::vector<uint64_t> ticks() const {
    std::vector<uint64_t> out;
    const double last = top_ * 1.0001;
    double tick = 0;
    while (tick <= last) {
      out.push_back(static_cast<uint64_t>(tick));
      tick += tick_;
    }
    return out;
  }

 private:
  double begin_, end_, tick_ = 1, top_ = 1;
};

class Page {
 public:
  Page(const Plan& plan, const AdviceList* advice) : plan_(plan), advice_(advice) {}

  std::string run() {
    add("{}{}</title>\n<style>{}</style>\n<body>\n", kPlanHtmlHead, html_text(title()), kStyle);
    head();
    bars();
    timeline();
    table();
    traffic();
    if (advice_) advice();
    add("</body>\n</html>\n");
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }

  std::string title() const { return plan_.name.empty() ? "" : " of " + plan_.name; }

  void head() {
    add("<h1>memory plan{}</h1>\n", html_text(title()));
    add("<p>{} parameters, {} trained · {} on {} · {} · {} · recompute {}</p>\n",
        count_text(static_cast<double>(plan_.num_parameters)), count_text(static_cast<double>(plan_.num_trained)),
        plan_.compute, plan_.device,
        plan_.world_size == 1 ? "one rank"
                              : std::to_string(plan_.world_size) + " ranks (" + html_text(plan_.mesh) + ")",
        html_text(plan_.strategies), text(plan_.recompute));
    add("<p>a step is {} rows of {} tokens: {} micro-batches of {} on each rank</p>\n", plan_.batch.global_batch_size,
        plan_.seq_len, plan_.batch.num_microbatches, plan_.batch.micro_batch_size);
    const uint64_t needed = plan_.largest().peak_bytes();
    if (plan_.memory_bytes == 0)
      add("<p class=\"verdict\">needs {} on each rank</p>\n", bytes_text(needed));
    else if (plan_.fits())
      add("<p class=\"verdict\">fits: {} of {}</p>\n", bytes_text(needed), bytes_text(plan_.memory_bytes));
    else
      add("<p class=\"verdict bad\">does not fit: {} of {}, {} too much</p>\n", bytes_text(needed),
          bytes_text(plan_.memory_bytes), bytes_text(needed - plan_.memory_bytes));
  }

  void legend() {
    add("<div class=\"legend\">");
    for (size_t i = 0; i < kNumPlanCategories; ++i)
      add("<span><svg viewBox=\"0 0 1 1\"><rect class=\"c{}\" width=\"1\" height=\"1\"/></svg>{}</span>", i,
          plan_category_name(static_cast<PlanCategory>(i)));
    add("</div>\n");
  }

  void open_svg(double height, const char* label) {
    add("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height, label);
  }

  void vertical_grid(const Scale& x, double top, double bottom) {
    for (const uint64_t tick : x.ticks())
      add("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
          "text-anchor=\"middle\">{4}</text>\n",
          x.at(tick), top, bottom, bottom + 15, bytes_text(tick));
  }

  void vertical_limit(const Scale& x, double top, double bottom) {
    if (plan_.memory_bytes == 0) return;
    add("<line class=\"limit\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"><title>limit: {3}</title></line>\n",
        x.at(plan_.memory_bytes), top, bottom, bytes_text(plan_.memory_bytes));
    add("<text class=\"limit-text\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">limit {}</text>\n",
        x.at(plan_.memory_bytes), top - 4, bytes_text(plan_.memory_bytes));
  }

  static std::string ranks_label(const RankPlan& rank) {
    const std::string ranks = ranks_text(rank.ranks);
    return rank.ranks.size() == 1 ? "rank " + ranks : std::to_string(rank.ranks.size()) + " ranks: " + ranks;
  }

  // One bar for each kind of rank.
  void bars() {
    const std::vector<RankPlan>& bars = plan_.ranks;
    const double bar = bars.size() > 24 ? 9 : bars.size() > 8 ? 16 : 26, gap = bars.size() > 24 ? 3 : 8;
    const double top = 28, bottom = top + static_cast<double>(bars.size()) * (bar + gap);
    const Scale x(std::max(plan_.largest().peak_bytes(), plan_.memory_bytes), kLeft, kWidth - kRight);
    add("<h2>At the peak of a step, by kind of rank</h2>\n");
    legend();
    open_svg(bottom + 26, "memory by rank");
    vertical_grid(x, top, bottom);
    double y = top + gap / 2;
    for (const RankPlan& rank : bars) {
      const std::string name = ranks_label(rank);
      const std::string shown = name.size() > kMaxLabel ? name.substr(0, kMaxLabel) + "…" : name;
      add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 10, y + bar / 2 + 4, html_text(shown));
      uint64_t sum = 0;
      for (size_t i = 0; i < kNumPlanCategories; ++i) {
        const uint64_t bytes = rank.step.categories[i].bytes_at_total_peak;
        if (bytes > 0)
          add("<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}: {} "
              "{}</title></rect>\n",
              i, x.at(sum), y, x.at(sum + bytes) - x.at(sum), bar, html_text(name),
              plan_category_name(static_cast<PlanCategory>(i)), bytes_text(bytes));
        sum += bytes;
      }
      add("<text class=\"strong\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x.at(sum) + 6, y + bar / 2 + 4,
          bytes_text(sum));
      y += bar + gap;
    }
    vertical_limit(x, top, bottom);
    add("</svg>\n");
  }

  // Memory of the largest rank over a step: for each event, the peak since the event before.
  void timeline() {
    const RankPlan& rank = plan_.largest();
    const std::vector<PlanSample> samples = rank.timeline.all();
    if (samples.size() < 2) return;
    const double top = 24, bottom = 250, left = 70, right = kWidth - 20;
    uint64_t most = plan_.memory_bytes;
    for (const PlanSample& sample : samples) {
      uint64_t sum = 0;
      for (const uint64_t bytes : sample.bytes) sum += bytes;
      most = std::max(most, sum);
    }
    const Scale y(most, bottom, top);
    const double step = (right - left) / static_cast<double>(samples.size());
    add("<h2>Over a step, on rank {}</h2>\n", rank.rank);
    open_svg(bottom + 24, "memory over a step");
    for (const uint64_t tick : y.ticks())
      add("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5}</text>\n",
          left, right, y.at(tick), left - 8, y.at(tick) + 4, bytes_text(tick));
    std::vector<uint64_t> below(samples.size(), 0);
    for (size_t c = 0; c < kNumPlanCategories; ++c) {
      std::string upper, lower;
      for (size_t i = 0; i < samples.size(); ++i) {
        const double x0 = left + step * static_cast<double>(i), x1 = x0 + step;
        const double high = y.at(below[i] + samples[i].bytes[c]), low = y.at(below[i]);
        upper += fmt::format("{}{:.1f},{:.1f} {:.1f},{:.1f}", i == 0 ? "M" : " ", x0, high, x1, high);
        lower = fmt::format(" {:.1f},{:.1f} {:.1f},{:.1f}", x1, low, x0, low) + lower;
        below[i] += samples[i].bytes[c];
      }
      add("<path class=\"c{}\" d=\"{}{}Z\"/>\n", c, upper, lower);
    }
    for (size_t i = 0; i < samples.size(); ++i)
      add("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"transparent\"><title>{}: "
          "{}</title></rect>\n",
          left + step * static_cast<double>(i), top, step, bottom - top, html_text(samples[i].event),
          bytes_text(below[i]));
    if (plan_.memory_bytes > 0)
      add("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", left, right,
          y.at(plan_.memory_bytes));
    add("<text x=\"{}\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n</svg>\n", left,
        bottom + 16, html_text(samples.front().event), right, bottom + 16, html_text(samples.back().event));
  }

  template <typename Bytes>
  void table_row(const std::string& name, const Bytes& bytes) {
    uint64_t least = UINT64_MAX, most = 0;
    const RankPlan* largest = nullptr;
    for (const RankPlan& rank : plan_.ranks) {
      least = std::min<uint64_t>(least, bytes(rank));
      if (!largest || bytes(rank) > most) most = bytes(rank), largest = &rank;
    }
    if (most > 0)
      add("<tr><td>{}<td>{}<td>{}<td>{}\n", html_text(name), bytes_text(most), bytes_text(least),
          ranks_text(largest->ranks));
  }

  void table() {
    add("<h2>Peak of each category</h2>\n<table>\n<tr><th><th>most<th>least<th>most on ranks\n");
    for (size_t i = 0; i < kNumPlanCategories; ++i)
      table_row(std::string(plan_category_name(static_cast<PlanCategory>(i))),
                [i](const RankPlan& r) { return r.step.categories[i].peak_bytes; });
    table_row("peak of a step", [](const RankPlan& r) { return r.step.peak_bytes; });
    table_row("peak of loading", [](const RankPlan& r) { return r.load_peak_bytes; });
    table_row("peak of saving, exporting", [](const RankPlan& r) { return r.export_peak_bytes; });
    table_row("memory of the host", [](const RankPlan& r) { return r.host_peak_bytes; });
    add("</table>\n");
  }

  void traffic() {
    const RankPlan& rank = plan_.ranks[0];
    if (rank.traffic.empty()) return;
    add("<h2>Sent by each rank in a step</h2>\n<table>\n<tr><th>group<th>operation<th>calls<th>bytes\n");
    for (const CommCount& count : rank.traffic)
      add("<tr><td>{}<td>{}<td>{}<td>{}\n", html_text(count.group), html_text(count.op), count.calls,
          bytes_text(count.bytes));
    add("</table>\n");
  }

  void advice() {
    std::vector<const Advice*> all;
    for (const Advice& one : advice_->single) all.push_back(&one);
    if (advice_->together) all.push_back(&*advice_->together);
    add("<h2>Changes that save memory</h2>\n");
    if (all.empty()) return add("<p>no single change saves memory</p>\n");
    const uint64_t now = plan_.largest().peak_bytes();
    const double left = 8, bar = 14, pitch = 38, top = 24;
    const double bottom = top + static_cast<double>(all.size()) * pitch;
    const Scale x(std::max(now, plan_.memory_bytes), left, kWidth - kRight);
    open_svg(bottom + 26, "memory after each change");
    vertical_grid(x, top, bottom);
    double y = top;
    for (const Advice* one : all) {
      add("<text class=\"strong\" x=\"{}\" y=\"{:.1f}\">{}{}</text>\n", left + 4, y + 14,
          one == all.back() && advice_->together ? "together: " : "",
          html_text(one->change + traffic_change_text(*one)));
      add("<rect class=\"rest\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"/>", left, y + 19,
          x.at(one->peak_bytes) - left, bar);
      add("<rect class=\"gain\" opacity=\".45\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"/>\n",
          x.at(one->peak_bytes), y + 19, x.at(now) - x.at(one->peak_bytes), bar);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}, −{}{}</text>\n", x.at(now) + 6, y + 30, bytes_text(one->peak_bytes),
          bytes_text(static_cast<uint64_t>(one->saved_bytes)), one->fits ? ": fits" : "");
      y += pitch;
    }
    vertical_limit(x, top, bottom);
    add("</svg>\n");
  }

  const Plan& plan_;
  const AdviceList* advice_;
  std::string out_;
};

}  // namespace

std::string plan_html(const Plan& plan, const AdviceList* advice) { return Page(plan, advice).run(); }

}  // namespace chassis
