// Charts are drawn by page/page.js from numbers in the page; tables are HTML, so that they need no script.
#include "host/report/page.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>
#include <map>
#include <span>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/report/page_assets.hpp"
#include "host/report/run_summary.hpp"

namespace chassis {
namespace {

constexpr size_t kManyRuns = 4;    // from here on only the metrics with charts of their own are in the page
constexpr size_t kMaxShown = 200;  // rows of a table

std::string base64(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little, "the page reads little-endian numbers");
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  const size_t size = values.size_bytes();
  std::string text;
  text.reserve((size + 2) / 3 * 4);
  for (size_t i = 0; i < size; i += 3) {
    const size_t left = std::min<size_t>(3, size - i);
    const uint32_t three = uint32_t{bytes[i]} << 16 | (left > 1 ? uint32_t{bytes[i + 1]} << 8 : 0) |
                           (left > 2 ? uint32_t{bytes[i + 2]} : 0);
    text += kDigits[three >> 18];
    text += kDigits[three >> 12 & 63];
    text += left > 1 ? kDigits[three >> 6 & 63] : '=';
    text += left > 2 ? kDigits[three & 63] : '=';
  }
  return text;
}

bool has_smooth_chart(std::string_view name) { return name == "loss" || name == "grad_norm"; }
bool has_chart(std::string_view name) {
  constexpr std::string_view kNames[] = {"lr",
                                         "tokens_per_s",
                                         "step_ms",
                                         "data_ms",
                                         "forward_ms",
                                         "backward_ms",
                                         "optimizer_ms",
                                         "save_ms",
                                         "comm_exposed_ms",
                                         "comm_hidden_ms",
                                         "peak_memory_bytes",
                                         "active_memory_bytes",
                                         "reserved_memory_bytes"};
  return has_smooth_chart(name) || name.starts_with("memory/") ||
         (name.starts_with("router/") && name.ends_with("/max_load")) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// The numbers of one run from bucket `from` on.
Json run_json(const RunReader& run, size_t from, bool all_metrics) {
  const History& history = run.history();
  Json json = {{"name", run.name()},           {"state", to_text(run.state())}, {"step", history.last_step()},
               {"max_steps", run.max_steps()}, {"width", history.width()},      {"from", from}};
  Json& metrics = json["metrics"] = Json::object();
  const auto text = [&](const std::vector<float>& values) {
    return base64(from < values.size() ? std::span(values).subspan(from) : std::span<const float>());
  };
  for (const Series& series : history.series()) {
    if (!all_metrics && !has_chart(series.name)) continue;
    Json& metric = metrics[series.name] = {{"mean", text(series.mean)}};
    if (!has_smooth_chart(series.name)) continue;
    metric["smooth"] = base64(series.smoothed());  // all of it, since it depends on the length of the run
    if (history.width() > 1 && all_metrics) metric["min"] = text(series.min), metric["max"] = text(series.max);
  }
  Json& evaluations = json["evaluations"] = Json::object();
  for (const EvalPoint& point : run.evaluations()) {
    Json& set = evaluations[point.name];
    if (set.is_null()) set = {{"step", Json::array()}, {"loss", Json::array()}};
    set["step"].push_back(point.step);
    set["loss"].push_back(std::isfinite(point.loss) ? Json(point.loss) : Json());
  }
  Json& scores = json["scores"] = Json::object();
  for (const ScorePoint& point : run.scores()) {
    Json& set = scores[point.name];
    if (set.is_null()) set = {{"step", Json::array()}, {"score", Json::array()}};
    set["step"].push_back(point.step);
    set["score"].push_back(point.score);
  }
  if (run.about().is_object() && run.about().contains("plan")) json["plan"] = run.about()["plan"];
  return json;
}

// JSON between <script> tags: no "<" may begin a tag.
std::string script_text(const Json& json) {
  const std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  std::string safe;
  for (const char c : text) safe += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return safe;
}

std::string time_text(double time) {
  constexpr double kYear10000 = 253402300800.0;
  if (!(time > 0.0)) return "";
  if (time >= kYear10000) return fmt::format("{:g} s after 1970", time);  // too large for a date
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(time)));
}

std::string cell(const std::string& text) { return "<td>" + html_text(text) + "</td>"; }
std::string number_cell(const std::string& text) { return "<td class=\"n\">" + html_text(text) + "</td>"; }

class Tables {
 public:
  explicit Tables(const std::vector<const RunReader*>& runs) : runs_(runs) {}

  std::string text() {
    summary();
    differences();
    for (const RunReader* run : runs_) {
      if (runs_.size() > 1) out_ += "<details><summary>" + html_text(run->name()) + "</summary>\n";
      ranks(*run);
      checkpoints(*run);
      swaps(*run);
      data(*run);
      post_mortems(*run);
      warnings(*run);
      samples(*run);
      composition(*run);
      configuration(*run);
      if (runs_.size() > 1) out_ += "</details>\n";
    }
    return std::move(out_);
  }

 private:
  void open(const std::string& title, std::initializer_list<const char*> columns) {
    out_ += "<h2>" + html_text(title) + "</h2>\n<div class=\"scroll\"><table><tr>";
    for (const std::string_view column : columns)
      out_ += column.starts_with('#') ? "<th class=\"n\">" + std::string(column.substr(1)) + "</th>"
                                      : "<th>" + std::string(column) + "</th>";
    out_ += "</tr>\n";
  }
  void row(const std::string& cells) { out_ += "<tr>" + cells + "</tr>\n"; }
  void close() { out_ += "</table></div>\n"; }

  void summary() {
    open("results",
         {"run", "state", "#step", "#loss (last 20)", "#lowest loss", "#at step", "#tokens/s", "#peak memory"});
    for (const RunReader* run : runs_) {
      const History& history = run->history();
      const Series* const loss = history.find("loss");
      const Series* const peak = history.find("peak_memory_bytes");
      const int64_t max = run->max_steps();
      row(cell(run->name()) + cell(std::string(to_text(run->state()))) +
          number_cell(std::to_string(run->last_step()) + (max > 0 ? " of " + std::to_string(max) : "")) +
          number_cell(loss ? metric_text("loss", history.recent_mean("loss", 20)) : "") +
          number_cell(loss ? metric_text("loss", loss->lowest) : "") +
          number_cell(loss ? std::to_string(loss->lowest_step) : "") +
          number_cell(metric_text("tokens_per_s", recent_tokens_per_second(history))) +
          number_cell(peak ? metric_text("peak_memory_bytes", peak->last) : ""));
    }
    close();
  }

  void differences() {
    if (runs_.size() < 2) return;
    const std::vector<ConfigDifference> all = config_differences(runs_);
    out_ += "<h2>differences of the configurations</h2>\n";
    if (all.empty()) {
      out_ += "<p class=\"soft\">none</p>\n";
      return;
    }
    out_ += "<div class=\"scroll\"><table><tr><th>key</th>";
    for (const RunReader* run : runs_) out_ += "<th>" + html_text(run->name()) + "</th>";
    out_ += "</tr>\n";
    for (const ConfigDifference& difference : all) {
      std::string cells = "<td class=\"key\">" + html_text(difference.key) + "</td>";
      for (const std::string& value : difference.values) cells += cell(value.empty() ? "–" : value);
      row(cells);
    }
    close();
  }

  void ranks(const RunReader& run) {
    const std::vector<RankStatus>& all = run.ranks();
    if (all.size() < 2) return;
    const int slow = straggler(all);
    const bool has_temperature = std::any_of(all.begin(), all.end(), [](const auto& r) { return r.temperature; });
    open("ranks", {"rank", "#step", "#step, ms", "#exposed communication, ms", "#own work, ms", "#peak memory",
                   has_temperature ? "#°C" : "", ""});
    for (size_t i = 0; i < std::min(all.size(), kMaxShown); ++i) {
      const RankStatus& rank = all[i];
      row(cell(std::to_string(rank.rank)) + number_cell(std::to_string(rank.step)) +
          number_cell(fmt::format("{:.4g}", rank.step_ms)) + number_cell(fmt::format("{:.4g}", rank.wait_ms)) +
          number_cell(fmt::format("{:.4g}", rank.step_ms - rank.wait_ms)) + number_cell(bytes_text(rank.active_bytes)) +
          number_cell(rank.temperature ? fmt::format("{:.0f}", *rank.temperature) : "") +
          (static_cast<int>(i) == slow ? "<td class=\"bad\">the others wait for it</td>" : "<td></td>"));
    }
    close();
    if (all.size() > kMaxShown) out_ += fmt::format("<p class=\"soft\">and {} more</p>\n", all.size() - kMaxShown);
  }

  void checkpoints(const RunReader& run) {
    const std::vector<CheckpointLine> all = checkpoint_lines(run);
    if (all.empty()) return;
    open("checkpoints", {"#step", "saved", "#size", "#took, s", "#stall, s", "resumable", "check"});
    for (size_t i = all.size() > kMaxShown ? all.size() - kMaxShown : 0; i < all.size(); ++i) {
      const CheckpointLine& line = all[i];
      const bool is_good = line.check == "whole", is_bad = !is_good && line.check != "removed";
      row(number_cell(std::to_string(line.step)) + cell(time_text(line.time)) +
          number_cell(line.num_bytes > 0 ? bytes_text(line.num_bytes) : "") +
          number_cell(line.seconds > 0.0 ? fmt::format("{:.2f}", line.seconds) : "") +
          number_cell(line.seconds > 0.0 ? fmt::format("{:.2f}", line.stall_seconds) : "") +
          cell(line.resumable ? "yes" : "no") +
          fmt::format("<td class=\"{}\">{}</td>",
                      is_good  ? "good"
                      : is_bad ? "bad"
                               : "soft",
                      html_text(line.check)));
    }
    close();
  }

  void swaps(const RunReader& run) {
    const std::vector<SwapPoint>& all = run.swaps();
    if (all.empty()) return;
    open("swaps", {"#after step", "at", "#generation", "#pause, ms", "change", "outcome"});
    for (size_t i = all.size() > kMaxShown ? all.size() - kMaxShown : 0; i < all.size(); ++i) {
      const SwapPoint& swap = all[i];
      const bool is_good = swap.outcome == "committed" || swap.outcome == "checked";
      const bool is_bad = swap.outcome == "refused" || swap.outcome == "rolled back";
      row(number_cell(std::to_string(swap.step)) + cell(time_text(swap.time)) +
          number_cell(std::to_string(swap.generation)) + number_cell(fmt::format("{:.0f}", swap.pause_ms)) +
          cell(swap.change) +
          fmt::format("<td class=\"{}\">{}</td>",
                      is_good  ? "good"
                      : is_bad ? "bad"
                               : "soft",
                      html_text(swap.cause.empty() ? swap.outcome : swap.outcome + ": " + swap.cause)));
    }
    close();
  }

  void data(const RunReader& run) {
    const Json& about = run.about();
    if (!about.is_object() || !about.contains("data") || !about["data"].is_array()) return;
    open("data", {"set", "#documents used", "#tokens used", "#too long"});
    for (const Json& set : about["data"]) {
      const auto count = [&](const char* key) {
        return set.is_object() && set.contains(key) && set[key].is_number() ? count_text(set[key].get<double>())
                                                                            : std::string();
      };
      const std::string path =
          set.is_object() && set.contains("path") && set["path"].is_string() ? set["path"].get<std::string>() : "";
      row(cell(path) + number_cell(count("usable_documents")) + number_cell(count("usable_tokens")) +
          number_cell(count("too_long_documents")));
    }
    close();
  }

  void post_mortems(const RunReader& run) {
    const std::vector<PostMortem> all = post_mortems_of(run);
    if (all.empty()) return;
    open("post-mortems", {"file", "kind", "error"});
    for (const PostMortem& found : all) row(cell(found.file) + cell(found.kind) + cell(found.error));
    close();
  }

  void warnings(const RunReader& run) {
    const std::vector<std::string> defects = run.defects();
    if (run.warnings().empty() && defects.empty()) return;
    open("warnings, and what was dropped", {"what", "#times"});
    for (const auto& [key, count] : run.warnings()) row(cell(key) + number_cell(std::to_string(count)));
    for (const std::string& defect : defects) row("<td class=\"bad\">" + html_text(defect) + "</td><td></td>");
    close();
  }

  void samples(const RunReader& run) {
    if (run.samples().empty()) return;
    out_ += "<h2>samples</h2>\n";
    constexpr size_t kShown = 12;
    const auto& all = run.samples();
    for (size_t i = all.size() > kShown ? all.size() - kShown : 0; i < all.size(); ++i)
      out_ += fmt::format("<p class=\"soft\">step {}, ended by {}</p><pre><b>{}</b>{}</pre>\n", all[i].step,
                          html_text(all[i].finish_reason), html_text(all[i].prompt), html_text(all[i].answer));
  }

  void composition(const RunReader& run) {
    const Json& lock = run.plugins();
    if (!lock.is_object() || !lock.contains("plugins") || !lock["plugins"].is_array()) return;
    const auto text = [](const Json& object, const char* key) {
      return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>()
                                                                                   : "";
    };
    open("composition", {"plugin", "serves", "version", "ABI", "SHA-256"});
    for (const Json& plugin : lock["plugins"]) {
      std::string members;
      if (plugin.is_object() && plugin.contains("members") && plugin["members"].is_array())
        for (const Json& member : plugin["members"])
          if (member.is_string()) members += (members.empty() ? "" : ", ") + member.get<std::string>();
      row(cell(text(plugin, "id")) + cell(members) + cell(text(plugin, "version")) +
          cell(text(plugin, "abi_negotiated")) + "<td title=\"" + html_text(text(plugin, "sha256")) + "\">" +
          html_text(text(plugin, "sha256").substr(0, 12)) + "</td>");
    }
    close();
    if (!lock.contains("providers") || !lock["providers"].is_object()) return;
    std::map<std::string, std::string> by_provider;
    for (const auto& [op, provider] : dotted_values(lock["providers"]))
      if (provider.is_string()) {
        std::string& ops = by_provider[provider.get<std::string>()];
        ops += (ops.empty() ? "" : ", ") + op;
      }
    open("who computes what", {"provider", "operations"});
    for (const auto& [provider, ops] : by_provider) row(cell(provider) + cell(ops));
    close();
  }

  void configuration(const RunReader& run) {
    const std::vector<ConfigValue> all = config_of(run);
    if (all.empty()) return;
    out_ +=
        "<h2>configuration</h2>\n<details><summary>all keys, and where they come from</summary>\n"
        "<div class=\"scroll\"><table><tr><th>key</th><th>value</th><th>origin</th></tr>\n";
    for (const ConfigValue& value : all)
      row("<td class=\"key\">" + html_text(value.key) + "</td>" + cell(value.value) + cell(value.origin));
    out_ += "</table></div></details>\n";
  }

  const std::vector<const RunReader*>& runs_;
  std::string out_;
};

std::string head_html(const std::vector<const RunReader*>& runs) {
  if (runs.size() > 1) return fmt::format("<h1>{} runs</h1>\n", runs.size());
  const RunReader& run = *runs.front();
  std::string text = "<h1>" + html_text(run.name()) + "</h1>\n<p>";
  const int64_t max = run.max_steps();
  text +=
      fmt::format("{} at step {}{}", to_text(run.state()), run.last_step(), max > 0 ? fmt::format(" of {}", max) : "");
  if (run.seconds() > 0.0) text += ", " + duration_text(run.seconds());
  text += "</p>\n<p class=\"soft\">";
  std::string facts;
  for (const std::string& fact : facts_of(run)) facts += (facts.empty() ? "" : " · ") + fact;
  text += html_text(facts) + "</p>\n";
  if (!run.has_metrics()) text += "<p class=\"bad\">no metrics.jsonl: [log] sinks has no \"jsonl\"</p>\n";
  return text;
}

// Draws the losses as one line for each run, for browsers without scripts.
std::string still_picture(const std::vector<const RunReader*>& runs) {
  std::string text = "<p>Charts need a script. The mean losses:</p>\n";
  for (const RunReader* run : runs) {
    const Series* const loss = run->history().find("loss");
    if (!loss || !(loss->highest > loss->lowest)) continue;
    text += "<p>" + html_text(run->name()) +
            "</p><svg viewBox=\"0 0 600 120\" width=\"100%\" style=\"max-width:38rem\"><polyline fill=\"none\" "
            "stroke=\"#3b7dd8\" points=\"";
    const size_t size = loss->mean.size(), stride = std::max<size_t>(1, size / 300);
    for (size_t i = 0; i < size; i += stride)
      if (std::isfinite(loss->mean[i]))
        text += fmt::format("{:.1f},{:.1f} ",
                            600.0 * static_cast<double>(i) / static_cast<double>(std::max<size_t>(1, size - 1)),
                            115.0 - 110.0 * (loss->mean[i] - loss->lowest) / (loss->highest - loss->lowest));
    text += "\"/></svg>\n";
  }
  return text;
}

}  // namespace

std::string page_html(const std::vector<const RunReader*>& runs, bool is_live) {
  Json data = {{"live", is_live}, {"runs", Json::array()}};
  for (const RunReader* run : runs) data["runs"].push_back(run_json(*run, 0, runs.size() < kManyRuns));
  const std::string title = runs.size() == 1 ? runs.front()->name() : std::to_string(runs.size()) + " runs";
  std::string page(kReportHtmlHead);
  page +=
      "<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; connect-src 'self'\">\n<title>" +
      html_text(title) + "</title>\n<style>";
  page.append(uplot_style()).append(page_style());
  page += "</style>\n<body>\n<div id=\"head\">" + head_html(runs) + "</div>\n";
  if (is_live) page += "<p class=\"soft\" id=\"status\">connecting</p>\n";
  page += "<div class=\"runs\" id=\"runs\"></div>\n<div class=\"charts\" id=\"charts\"></div>\n<noscript>" +
          still_picture(runs) + "</noscript>\n<div id=\"tables\">\n" + Tables(runs).text() +
          "</div>\n<script type=\"application/json\" id=\"data\">" + script_text(data) + "</script>\n<script>";
  page.append(uplot_script()).append("</script>\n<script>").append(page_script());
  return page + "</script>\n</body>\n</html>\n";
}

std::string live_data(const RunReader& run, int64_t since) {
  const std::vector<const RunReader*> runs = {&run};
  const History& history = run.history();
  const size_t all = history.num_buckets();
  const size_t from = since > 1 ? std::min(all, static_cast<size_t>((since - 1) / history.width())) : 0;
  Json json = {
      {"runs", Json::array({run_json(run, from, true)})}, {"tables", Tables(runs).text()}, {"head", head_html(runs)}};
  return json_line(json);
}

}  // namespace chassis
