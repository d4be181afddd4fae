#include "host/session/run_tokenizer.hpp"

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/data/tokenizer_files.hpp"

namespace chassis {
namespace {

std::string text_of_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Weights know the ids that they were trained on: with those of another tokenizer they read garbage.
void require_tokenizer_of_model(const Config& config) {
  bool reads_text = config.use() == ConfigUse::kGeneration;
  for (const char* sets : {"data.train", "data.eval"})
    for (size_t i = 0; i < config.count(sets); ++i)
      reads_text |= config.get_string(std::string(sets) + "." + std::to_string(i) + ".format") == "text";
  if (!reads_text || config.get_string("model.init") == "random") return;
  const std::vector<std::string> files = other_tokenizer_files(config);
  if (files.empty()) return;
  const std::string what = "tokenizer '" + config.get_string("tokenizer.plugin") + "' is not the one that " +
                           config.get_string("model.path") + " brings along (" + text_of_list(files) + ")";
  if (config.get_bool("tokenizer.force"))
    return counted_warning("tokenizer.force", what + ", and is used all the same");
  throw Error(ExitCode::kConfig, config.position("tokenizer.plugin"),
              what + ": to the model's weights its ids would mean other words")
      .hint(
          "tokenise the data with the model's own tokenizer and give format = \"tokens\"; tokenizer.force = true uses "
          "this one all the same");
}

}  // namespace

std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, RunPlugins& plugins, int64_t vocab_size) {
  if (!config.has("tokenizer.plugin") || config.get_string("tokenizer.plugin").empty()) return nullptr;
  require_tokenizer_of_model(config);
  const std::string& id = config.get_string("tokenizer.plugin");
  auto tokenizer = std::make_unique<PluginTokenizer>(plugins.create("tokenizer", "tokenizer", id));
  if (tokenizer->vocab_size() > vocab_size)
    throw Error(ExitCode::kConfig, config.position("tokenizer.plugin"),
                "tokenizer '" + id + "' has " + std::to_string(tokenizer->vocab_size()) +
                    " ids, the model's vocabulary has " + std::to_string(vocab_size))
        .hint("set vocab_size of the model to at least " + std::to_string(tokenizer->vocab_size()));
  return tokenizer;
}

std::vector<std::string> other_tokenizer_files(const Config& config) {
  if (!config.has("model.path") || !config.has("tokenizer.plugin") || config.get_string("tokenizer.plugin").empty())
    return {};
  const std::string& model = config.get_string("model.path");
  const Json options = config.plugin_options("tokenizer");
  for (const auto& [name, value] : options.items())  // it is told to read them
    if (value.is_string() && !value.get<std::string>().empty() && lies_in(value.get<std::string>(), model)) return {};
  return tokenizer_files(model);
}

}  // namespace chassis
