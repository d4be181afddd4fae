// Finds the tokenizer plugin by the files of a directory, opens it, and compares it with the one in the model's
// directory.
#include "host/text/run_tokenizer.hpp"

#include <algorithm>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/config/task_table.hpp"
#include "host/data/tokenizer_files.hpp"

namespace chassis {
namespace {

std::string comma_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool reads_text(const Config& config) {
  const Settings& settings = config.settings();
  if (config.use() == ConfigUse::kGeneration || spec_of(settings.train.task).has_answers) return true;
  if (config.use() == ConfigUse::kTraining && !settings.sample.prompts->empty()) return true;
  if (!settings.eval.generate.empty()) return true;
  for (const Settings::TrainSet& set : settings.data.train)
    if (set.format != DataFormat::kTokens) return true;
  for (const Settings::EvalSet& set : settings.data.eval)
    if (set.format != DataFormat::kTokens) return true;
  return false;
}

// The entry whose directory a tokenizer is opened from; NULL: there is none.
const Setting<std::string>* directory_setting(const Settings& settings) {
  if (settings.tokenizer.path.is_set()) return &settings.tokenizer.path;
  return settings.model.path.is_set() ? &settings.model.path : nullptr;
}

// An id that stands for different words in the two vocabularies, as a text; empty if there is none. Special and added
// tokens may be renamed, as instruct models do with reserved ones.
std::string difference(const PluginTokenizer& a, const PluginTokenizer& b) {
  if (a.fingerprint() == b.fingerprint()) return "";
  const auto is_word = [](const TokenText& token) { return !token.special && !token.added && !token.unused; };
  for (int64_t id = 0; id < std::min(a.vocab_size(), b.vocab_size()); ++id) {
    const TokenText first = a.token(static_cast<int32_t>(id)), second = b.token(static_cast<int32_t>(id));
    if (is_word(first) && is_word(second) && first.text != second.text)
      return "id " + std::to_string(id) + " is '" + printable(first.text) + "', and '" + printable(second.text) +
             "' in that of the model";
  }
  return "";
}

bool is_same_directory(const std::string& a, const std::string& b) { return lies_in(a, b) && lies_in(b, a); }

// The weights were trained on the ids of one tokenizer; with those of another their results are meaningless.
void require_tokenizer_of_model(const Config& config, const MakeTokenizer& make, const TokenizerChoice& choice,
                                const PluginTokenizer& tokenizer) {
  const Settings& settings = config.settings();
  if (!reads_text(config) || settings.model.init == ModelInit::kRandom) return;
  const std::vector<std::string> files = other_tokenizer_files(config, &tokenizer);
  if (files.empty()) return;
  const ConfigEntry& entry = settings.tokenizer.path.is_set() ? static_cast<const ConfigEntry&>(settings.tokenizer.path)
                                                              : settings.tokenizer.plugin;
  std::string what = "tokenizer '" + choice.member + "' is not the one that " + *settings.model.path + " contains (" +
                     comma_list(files) + ")";
  if (!tokenizer.directory().empty()) {  // opened from files elsewhere, which may be the same
    std::string different;
    try {
      const PluginTokenizer own(make(choice.member), settings.model.path);
      different = difference(tokenizer, own);
    } catch (const Error& error) {
      return counted_warning(entry.key(), "the tokenizer of " + tokenizer.directory() +
                                              " cannot be compared with that of " + *settings.model.path + ": " +
                                              error.message());
    }
    if (different.empty()) return;
    what = "the tokenizer of " + tokenizer.directory() + " is not the one that " + *settings.model.path +
           " contains: " + different;
  }
  if (settings.tokenizer.force)
    return counted_warning(settings.tokenizer.force.key(), what + ", and is used because tokenizer.force = true");
  throw config_error(entry, what + ": its ids stand for other words than those that the weights were trained on")
      .hint("leave out [tokenizer], so that the model's own is used; tokenizer.force = true uses this one anyway");
}

}  // namespace

std::vector<std::string> own_file_tokenizers(const PluginRegistry& registry) {
  std::vector<std::string> found;
  const PluginIndex& index = registry.index();
  for (const std::string& id : index.ids("tokenizer")) {
    const PluginFile& file = *index.find("tokenizer", id);
    if (!index.is_installed_with_program(file.path) || file.manifest.files.empty()) continue;
    if (registry.loads_only_pinned() && !registry.is_pinned(file)) continue;
    found.push_back(id);
  }
  return found;
}

std::string tokenizer_of_directory(const PluginRegistry& registry, const std::string& directory) {
  const std::vector<std::string> candidates = own_file_tokenizers(registry);
  for (const std::string& id : candidates)
    for (const std::string& name : registry.index().find("tokenizer", id)->manifest.files)
      if (path_kind(directory + "/" + name) != PathKind::kAbsent) return id;
  return candidates.empty() || tokenizer_files(directory).empty() ? "" : candidates.front();
}

namespace {

// A tokenizer of another folder and the file of the directory that it lists, such as "wordy" and "words.txt"; empty if
// one of the program's own lists a file, or if there is none.
std::pair<std::string, std::string> foreign_tokenizer(const PluginRegistry& registry, const std::string& directory) {
  std::pair<std::string, std::string> foreign;
  const std::vector<std::string> own = own_file_tokenizers(registry);
  for (const std::string& id : registry.index().ids("tokenizer"))
    for (const std::string& name : registry.index().find("tokenizer", id)->manifest.files) {
      if (path_kind(directory + "/" + name) == PathKind::kAbsent) continue;
      if (std::ranges::count(own, id) > 0) return {};
      if (foreign.first.empty()) foreign = {id, name};
    }
  return foreign;
}

}  // namespace

TokenizerChoice find_tokenizer(const Config& config, const PluginRegistry& registry) {
  const Settings& settings = config.settings();
  const Settings::Tokenizer& named = settings.tokenizer;
  const Setting<std::string>* const setting = directory_setting(settings);
  const std::string directory = setting ? **setting : "";
  if (named.plugin.is_set()) return {named.plugin, directory, false};
  if (setting == nullptr || (!named.path.is_set() && !reads_text(config))) return {};
  if (const auto [id, name] = foreign_tokenizer(registry, directory); !id.empty())
    throw config_error(*setting, setting->key() + " = \"" + directory + "\" has " + name + ", which plugin '" + id +
                                     "' opens; it lies outside of the program's own folder, so it is used only if it "
                                     "is named")
        .hint("set tokenizer.plugin = \"" + id + "\"");
  if (const std::string found = tokenizer_of_directory(registry, directory); !found.empty())
    return {found, directory, true};
  const std::vector<std::string> files = tokenizer_files(directory);
  const std::string shown = setting->key() + " = \"" + directory + "\"";
  if (files.empty())
    throw config_error(*setting, shown + " has no tokenizer files, and [tokenizer] names no plugin")
        .hint(
            "set tokenizer.path to a directory with tokenizer.json, or tokenizer.plugin; data that is tokenised "
            "already has format = \"tokens\"");
  throw config_error(*setting, shown + " has a tokenizer (" + comma_list(files) +
                                   "), but no plugin that opens such files is installed with this program")
      .hint(
          "`chassis plugins list` shows the tokenizers; tokenizer.plugin names one of another folder. Or tokenise the "
          "data elsewhere, and set format = \"tokens\"");
}

std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, const MakeTokenizer& make,
                                                const TokenizerChoice& choice, int64_t vocab_size) {
  if (choice.member.empty()) return nullptr;
  const Settings& settings = config.settings();
  const Setting<std::string>* const setting = directory_setting(settings);
  const ConfigEntry& entry = choice.is_default ? static_cast<const ConfigEntry&>(*setting) : settings.tokenizer.plugin;
  std::unique_ptr<PluginTokenizer> tokenizer;
  try {
    tokenizer = std::make_unique<PluginTokenizer>(make(choice.member), choice.directory);
  } catch (const Error& error) {
    throw error_at(entry, error);
  }
  tokenizer->set_model_vocab(vocab_size);
  if (tokenizer->adds_bos() && tokenizer->bos_id() >= vocab_size)
    throw config_error(entry, "tokenizer '" + choice.member + "' begins every text with " +
                                  printable(tokenizer->token(tokenizer->bos_id()).text, 60) + " (id " +
                                  std::to_string(tokenizer->bos_id()) + "), and the model's vocabulary has " +
                                  std::to_string(vocab_size) + " ids")
        .hint("use the tokenizer that the model was trained with, or a larger vocab_size");
  if (const int64_t num_above = tokenizer->vocab_size() - vocab_size; num_above > 0) {
    const std::string first = printable(tokenizer->token(static_cast<int32_t>(vocab_size)).text, 60);
    counted_warning(entry.key() + " ids",
                    "tokenizer '" + choice.member + "' has " + std::to_string(tokenizer->vocab_size()) +
                        " ids, the model's vocabulary has " + std::to_string(vocab_size) +
                        ": texts and templates that need one of the others are refused; the first is " + first +
                        " (id " + std::to_string(vocab_size) + ")" +
                        (settings.model.path.is_set() ? "" : "; vocab_size of a new model may be larger"),
                    static_cast<uint64_t>(num_above));
  }
  require_tokenizer_of_model(config, make, choice, *tokenizer);
  return tokenizer;
}

std::vector<std::string> other_tokenizer_files(const Config& config, const PluginTokenizer* tokenizer) {
  const Settings& settings = config.settings();
  if (!settings.model.path.is_set() || tokenizer == nullptr) return {};
  const std::string& model = settings.model.path;
  if (!tokenizer->directory().empty() && is_same_directory(tokenizer->directory(), model)) return {};
  const Json options = config.plugin_options(settings.tokenizer.key());
  for (const auto& [name, value] : options.items())  // this tokenizer reads them
    if (value.is_string() && !value.get<std::string>().empty() && lies_in(value.get<std::string>(), model)) return {};
  std::vector<std::string> files = tokenizer_files(model);
  for (const std::string& name : tokenizer->files())
    if (std::ranges::count(files, name) == 0 && path_kind(model + "/" + name) != PathKind::kAbsent)
      files.push_back(name);
  return files;
}

}  // namespace chassis
