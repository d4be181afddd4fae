// Text files of a model directory are left out, because their effects are among the other values.
#include "host/generate/generation_record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

std::string short_hash(std::string_view bytes) { return fmt::format("{:016x}", hash64(bytes, 0)); }

bool is_text_file(const fs::path& path) {
  constexpr std::array<std::string_view, 7> kEndings = {".json", ".jsonl", ".toml", ".txt", ".md", ".jinja", ".lock"};
  return std::ranges::count(kEndings, std::string_view(path.extension().native())) > 0;
}

std::string files_of_weights(const std::string& directory) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || is_text_file(entry.path())) continue;
    files.push_back(fmt::format("{} {} {}\n", entry.path().lexically_relative(directory).string(), entry.file_size(),
                                entry.last_write_time().time_since_epoch().count()));
  }
  std::ranges::sort(files);
  return short_hash(fmt::format("{}", fmt::join(files, "")));
}

// The name, and a hash of a text that may change under this name.
std::string template_of(const Session& session) {
  const std::string& name = session.settings().data.template_name;
  if (name == "auto") return name + " " + short_hash(session.tokenizer()->chat_template());
  if (name.ends_with(".toml") || name.ends_with(".jinja")) {
    std::error_code ignored;
    if (fs::is_regular_file(name, ignored)) return name + " " + short_hash(read_file(name));
  }
  return name;
}

}  // namespace

Json generation_record(const Session& session, const GenerationSettings& generation, const std::string& weights,
                       bool with_chat) {
  const Settings& settings = session.settings();
  const GenerateOptions& options = generation.options;
  Json made;
  std::error_code ignored;
  const fs::path absolute = fs::weakly_canonical(weights, ignored);
  made["weights"] = printable(ignored ? weights : absolute.string(), 4096);
  made["files of the weights"] = files_of_weights(weights);
  made["tokenizer"] = session.tokenizer()->fingerprint();
  made["precision.compute"] = dtype_name(session.compute());
  made["run.seed"] = options.seed;
  made["generate.max_new_tokens"] = options.max_new_tokens;
  made["generate.temperature"] = options.sampling.temperature;
  made["generate.top_k"] = options.sampling.top_k;
  made["generate.top_p"] = options.sampling.top_p;
  made["generate.min_p"] = options.sampling.min_p;
  made["generate.repetition_penalty"] = options.sampling.repetition_penalty;
  made["generate.stop"] = generation.stop_texts;
  made["stop ids"] = options.stop_ids;
  if (!with_chat) return made;
  const Settings::Data& data = settings.data;
  made["data.template"] = template_of(session);
  if (data.template_variables.is_set()) made["data.template_variables"] = to_json(*data.template_variables);
  if (data.template_date.is_set()) made["data.template_date"] = *data.template_date;
  if (data.default_system.is_set()) made["data.default_system"] = *data.default_system;
  made["data.reasoning"] = *data.reasoning;
  return made;
}

std::string differences_text(const Json& then, const Json& now) {
  std::set<std::string> names;
  for (const Json* made : {&then, &now})
    for (const auto& [name, value] : made->items()) names.insert(name);
  const auto shown = [](const Json& made, const std::string& name) {
    return made.contains(name) ? printable(json_line(made[name]), 300) : std::string("not set");
  };
  std::string text;
  for (const std::string& name : names) {
    const std::string was = shown(then, name), is = shown(now, name);
    if (was != is) text += fmt::format("\n  {}: {} then, {} now", printable(name, 80), was, is);
  }
  return text;
}

}  // namespace chassis
