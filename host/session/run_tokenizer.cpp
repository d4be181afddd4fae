// Opens the tokenizer, and compares it with the one in the model's directory.
#include "host/session/run_tokenizer.hpp"

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/data/tokenizer_files.hpp"

namespace chassis {
namespace {

std::string comma_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The weights were trained on the ids of one tokenizer; with those of another their results are meaningless.
void require_tokenizer_of_model(const Config& config) {
  const Settings& settings = config.settings();
  const Settings::Tokenizer& tokenizer = settings.tokenizer;
  bool reads_text = config.use() == ConfigUse::kGeneration;
  for (const Settings::TrainSet& set : settings.data.train) reads_text |= set.format == "text";
  for (const Settings::EvalSet& set : settings.data.eval) reads_text |= set.format == "text";
  if (!reads_text || settings.model.init == "random") return;
  const std::vector<std::string> files = other_tokenizer_files(config);
  if (files.empty()) return;
  const std::string what = "tokenizer '" + *tokenizer.plugin + "' is not the one that " + *settings.model.path +
                           " contains (" + comma_list(files) + ")";
  if (tokenizer.force)
    return counted_warning(tokenizer.force.key(), what + ", and is used because tokenizer.force = true");
  throw config_error(tokenizer.plugin,
                     what + ": its ids stand for other words than those that the weights were trained on")
      .hint(
          "tokenise the data with the model's own tokenizer and set format = \"tokens\"; tokenizer.force = true uses "
          "this one anyway");
}

}  // namespace

std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, RunPlugins& plugins, int64_t vocab_size) {
  const Settings::Tokenizer& settings = config.settings().tokenizer;
  if (!settings.is_named()) return nullptr;
  require_tokenizer_of_model(config);
  const std::string& id = settings.plugin;
  auto tokenizer = std::make_unique<PluginTokenizer>(plugins.create(settings.key(), "tokenizer", id));
  if (tokenizer->vocab_size() > vocab_size)
    throw config_error(settings.plugin, "tokenizer '" + id + "' has " + std::to_string(tokenizer->vocab_size()) +
                                            " ids, the model's vocabulary has " + std::to_string(vocab_size))
        .hint("set vocab_size of the model to at least " + std::to_string(tokenizer->vocab_size()));
  return tokenizer;
}

std::vector<std::string> other_tokenizer_files(const Config& config) {
  const Settings& settings = config.settings();
  if (!settings.model.path.is_set() || !settings.tokenizer.is_named()) return {};
  const std::string& model = settings.model.path;
  const Json options = config.plugin_options(settings.tokenizer.key());
  for (const auto& [name, value] : options.items())  // this tokenizer reads them
    if (value.is_string() && !value.get<std::string>().empty() && lies_in(value.get<std::string>(), model)) return {};
  return tokenizer_files(model);
}

}  // namespace chassis
