// `chassis data`: preview shows rows and which tokens are trained, stats counts all rows. Neither needs a device.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "host/base/creation_limit.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/command/page_file.hpp"
#include "host/command/preview_text.hpp"
#include "host/data/target_counts.hpp"
#include "host/plan/plan.hpp"
#include "host/session/run_data.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

struct DataArguments {
  ConfigArguments preview, stats;
  uint64_t rows = 3;
  std::string html;
  bool preview_json = false, stats_json = false, ids = false;
};

// Opens plugins, the tokenizer and the program, whose vocabulary and fields data must fit; no device and no weights.
std::unique_ptr<Session> open_session(const ConfigArguments& arguments) {
  Config config = arguments.load(ConfigUse::kData);
  SessionOptions options{.plugin_path = arguments.plugin_path,
                         .target = {.without_device = true, .assume_configured_device = true}};
  if (const int num_ranks = world_size_of(config.settings()); num_ranks > 1) options.world_size = num_ranks;
  return std::make_unique<Session>(std::move(config), options);
}

bool use_colours() {
  const char* const no_color = std::getenv("NO_COLOR");  // no-color.org: set and not empty
  return isatty(output_descriptor()) == 1 && (no_color == nullptr || *no_color == '\0');
}

std::string not_empty(const std::string& path) { return path.empty() ? "the path is empty" : ""; }

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), output()); }

int preview(const DataArguments& arguments) {
  refuse_other_page(arguments.html, kPreviewHtmlHead, "preview");  // before data is read
  const auto session = open_session(arguments.preview);
  const DataNeeds needs = session->data_needs();
  const DataConfig data = data_config(needs);
  std::vector<DataSetConfig> sets = data.train;
  for (const DataSetConfig& set : eval_set_configs(needs))
    if (set.part_end == 1) sets.push_back(set);  // parts read the same files
  const bool colours = use_colours();
  const PreviewLimits limits{.rows_of_file = arguments.rows};
  std::vector<PreviewRow> page;
  if (!arguments.preview_json) print(preview_legend(colours));
  std::string notes;
  for (const DataSetConfig& set : sets) {
    const PreviewOfSet seen = preview_rows(set, data, session->tokenizer(), limits, [&](const PreviewRow& row) {
      if (arguments.preview_json)
        print(json_line(json_document("data_preview", preview_json(set.key, row))) + "\n");
      else
        print("\n" + preview_text(row, colours, arguments.ids));
      if (!arguments.html.empty()) page.push_back(row);
    });
    const uint64_t num_shown = std::min(seen.num_files, limits.files);
    const std::string note = seen.is_sample ? fmt::format("{}: a sample, the first {} rows of {} of {} files", set.key,
                                                          limits.rows_of_file, num_shown, seen.num_files)
                                            : fmt::format("{}: all rows of {} files", set.key, seen.num_files);
    notes += note + ". ";
    if (!arguments.preview_json) print("\n" + note + "\n");
    for (const auto& [key, rows] : seen.unused_keys) {
      const std::string unused =
          fmt::format("{}: the key \"{}\" is not used by format \"{}\": {}", set.key, key, to_text(set.format), rows);
      notes += unused + ". ";
      if (!arguments.preview_json) print(unused + "\n");
    }
  }
  if (!arguments.html.empty()) {
    const CreationLimit limit(shared_read_mode(data_source_files(needs)));
    write_file_atomic(arguments.html, preview_html(page, notes));
    log::info("wrote {}", printable(arguments.html, 4096));
  }
  return 0;
}

struct SetStats {
  const DataSetConfig* config;
  const RowSource* source;
  std::optional<TargetCounts> targets = {};  // nullopt: rows have none
};

std::string class_name(const SetStats& set, size_t index) {
  return index < set.config->classes.size() ? " (" + printable(set.config->classes[index], 60) + ")" : "";
}

Json range_json(const NumberRange& range) {
  return {{"count", range.count}, {"min", range.min}, {"max", range.max}, {"mean", range.mean()}};
}

Json targets_json(const SetStats& set) {
  const TargetCounts& counts = *set.targets;
  Json json = Json::object();
  if (counts.num_pairs > 0) json = {{"pairs", counts.num_pairs}, {"margins", range_json(counts.margins)}};
  if (counts.num_desirable + counts.num_undesirable > 0)
    json = {{"desirable", counts.num_desirable}, {"undesirable", counts.num_undesirable}};
  if (counts.num_split_pairs > 0) json["split_pairs"] = counts.num_split_pairs;
  if (counts.num_texts > 0) json = {{"texts", counts.num_texts}};
  for (const auto& [index, texts] : counts.classes) json["classes"][std::to_string(index)] = texts;
  for (const NumberRange& range : counts.values) json["values"].push_back(range_json(range));
  if (counts.num_prompts > 0)
    json = {{"prompts", counts.num_prompts},
            {"equal_rewards", counts.num_equal_rewards},
            {"rewards", range_json(counts.rewards)}};
  return json;
}

double percent(uint64_t some, uint64_t all) {
  return all == 0 ? 0.0 : 100 * static_cast<double>(some) / static_cast<double>(all);
}

// Lines such as "  class 0 (neg)   20 (40.00 %)".
std::string targets_text(const SetStats& set) {
  constexpr size_t kMaxClasses = 100;
  const TargetCounts& counts = *set.targets;
  const auto range = [](const NumberRange& one) {
    return one.count == 0 ? std::string() : fmt::format(": {:g} to {:g}, mean {:g}", one.min, one.max, one.mean());
  };
  std::string text;
  if (counts.num_pairs > 0)
    text += fmt::format("  margins         {} of {} pairs{}\n", counts.margins.count, counts.num_pairs,
                        range(counts.margins));
  if (const uint64_t all = counts.num_desirable + counts.num_undesirable; all > 0)
    text += fmt::format("  labels          {} desirable ({:.2f} %), {} undesirable\n", counts.num_desirable,
                        percent(counts.num_desirable, all), counts.num_undesirable);
  if (counts.num_split_pairs > 0)
    text += fmt::format("  split           {} pairs, each into two labelled answers, which are rows\n",
                        counts.num_split_pairs);
  size_t num_shown = 0;
  for (const auto& [index, texts] : counts.classes) {
    if (num_shown++ == kMaxClasses) {
      text += fmt::format("  classes         {} more\n", counts.classes.size() - kMaxClasses);
      break;
    }
    const std::string name = fmt::format("class {}{}", index, class_name(set, static_cast<size_t>(index)));
    text += fmt::format("  {:<15} {} ({:.2f} %)\n", name, texts, percent(texts, counts.num_texts));
  }
  for (size_t i = 0; i < std::min(counts.values.size(), kMaxClasses); ++i) {
    const NumberRange& one = counts.values[i];
    text += fmt::format("  {:<15} {} of {}{}\n", fmt::format("target {}{}", i, class_name(set, i)), one.count,
                        counts.num_texts, range(one));
  }
  if (counts.num_prompts > 0)
    text += fmt::format("  rewards         {} answers to {} prompts{}; those to {} prompts are all equal\n",
                        counts.rewards.count, counts.num_prompts, range(counts.rewards), counts.num_equal_rewards);
  return text;
}

Json stats_json(const SetStats& set) {
  const TokenStoreFacts& facts = set.source->store().facts();
  Json json;
  json["set"] = set.config->key;
  json["path"] = set.config->path;
  if (set.config->part_begin > 0 || set.config->part_end < 1)
    json["part"] = {set.config->part_begin, set.config->part_end};
  json["rows"] = facts.num_documents + facts.num_dropped();
  json["documents"] = facts.num_documents;
  json["tokens"] = facts.num_tokens;
  json["trained_tokens"] = facts.num_trained_tokens;
  json["longest"] = facts.longest_document;
  json["too_long"] = set.source->num_long_documents();
  if (set.targets) json["targets"] = targets_json(set);
  json["dropped"] = Json::object();
  for (const auto& [reason, rows] : facts.dropped) json["dropped"][reason] = rows;
  json["changes"] = Json::object();
  for (const auto& [what, times] : facts.notes.changes) json["changes"][what] = times;
  json["unused_keys"] = Json::object();
  for (const auto& [key, rows] : facts.notes.unused_columns) json["unused_keys"][key] = rows;
  json["packed_rows"] = set.source->num_rows();
  json["utilisation"] = set.source->utilisation();
  return json;
}

std::string stats_text(const SetStats& set, const DataConfig& data) {
  const TokenStoreFacts& facts = set.source->store().facts();
  const uint64_t num_rows = facts.num_documents + facts.num_dropped();
  std::string text = fmt::format("{}  {}\n", set.config->key, printable(set.config->path, 4096));
  if (set.config->part_begin > 0 || set.config->part_end < 1)
    text += fmt::format("  part            {:g} to {:g} of the rows, by a hash\n", set.config->part_begin,
                        set.config->part_end);
  text += fmt::format("  rows            {}\n", num_rows);
  for (const auto& [reason, rows] : facts.dropped)
    text +=
        fmt::format("  dropped         {} ({:.2f} %): {}\n", rows, percent(rows, num_rows), printable(reason, 1000));
  const uint64_t too_long = set.source->num_long_documents();
  if (too_long > 0)
    text +=
        fmt::format("  too long        {} ({:.2f} %): more than train.seq_len = {} tokens; data.overflow = \"{}\"\n",
                    too_long, percent(too_long, num_rows), data.seq_len, to_text(data.overflow));
  text += fmt::format("  tokens          {}\n  trained tokens  {} ({:.2f} %)\n  longest         {} tokens\n",
                      facts.num_tokens, facts.num_trained_tokens, percent(facts.num_trained_tokens, facts.num_tokens),
                      facts.longest_document);
  if (set.targets) text += targets_text(set);
  for (const auto& [what, times] : facts.notes.changes)
    text += fmt::format("  changed         {} times: {}\n", times, printable(what, 1000));
  for (const auto& [key, rows] : facts.notes.unused_columns)
    text += fmt::format("  unused key      {} ({} times)\n", key, rows);
  text += fmt::format("  packing         {}: {:.1f} rows of {} tokens, {:.2f} % used\n", to_text(data.packing),
                      set.source->num_rows(), data.seq_len, 100 * set.source->utilisation());
  return text;
}

int stats(const DataArguments& arguments) {
  const auto session = open_session(arguments.stats);
  const DataNeeds needs = session->data_needs();
  DataConfig data = data_config(needs);
  data.max_drop_ratio = 1;  // the drop ratio is shown, not refused
  const auto train = open_train_data(needs, data);
  const auto eval = open_eval_data(needs);
  std::vector<SetStats> sets;
  for (const RowSource& source : train->sets()) sets.push_back({&source.config(), &source});
  for (const auto& set : eval) sets.push_back({&set->config(), &set->source()});
  Json all = Json::array();
  for (SetStats& set : sets) {
    if (data.sequences) set.targets = count_targets(*set.config, data);
    if (arguments.stats_json)
      all.push_back(stats_json(set));
    else
      print(stats_text(set, data));
  }
  if (arguments.stats_json) print_document("data_stats", {{"sets", std::move(all)}});
  return 0;
}

}  // namespace

Verb add_data(CLI::App& app) {
  auto arguments = std::make_shared<DataArguments>();
  app.require_subcommand(1);
  CLI::App* const preview_verb =
      app.add_subcommand("preview", "show the first rows, and which of their tokens are trained");
  arguments->preview.add_to(*preview_verb);
  preview_verb->add_option("--rows", arguments->rows, "rows of each file; default 3")->check(CLI::Range(1, 1 << 20));
  preview_verb->add_option("--html", arguments->html, "also write a page")->type_name("FILE")->check(not_empty);
  preview_verb->add_flag("--json", arguments->preview_json, "print a line of JSON for each row");
  preview_verb->add_flag("--ids", arguments->ids, "list the ids of each row");
  CLI::App* const stats_verb =
      app.add_subcommand("stats", "count rows and tokens, and what is dropped; prepares the data as a run does");
  arguments->stats.add_to(*stats_verb);
  add_json(*stats_verb, arguments->stats_json);
  return [=] { return preview_verb->parsed() ? preview(*arguments) : stats(*arguments); };
}

}  // namespace chassis
