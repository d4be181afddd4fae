// A slot template is written as Jinja, since other programs read nothing else.
#include "host/save/chat_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/generation_config.hpp"
#include "host/data/slot_jinja.hpp"
#include "host/text/run_chat.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;

std::string text_if_file(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  return directory.empty() || path_kind(path) == PathKind::kAbsent ? "" : read_file(path, kMaxFileBytes);
}

std::string trained_template(const Settings& settings, const ChatConfig& chat) {
  if (!chat.slots) return chat.template_text;
  SlotTemplate slots = *chat.slots;
  if (!chat.default_system.empty()) slots.default_system = chat.default_system;
  return slot_template_jinja(slots, settings.data.reasoning == Reasoning::kKeep);
}

// Makes chat_template.jinja the only template of the directory.
void write_template(const std::string& text, const std::string& tokenizer_directory, ChatFiles& files) {
  files.written.emplace_back("chat_template.jinja", text);
  files.left_out.insert({"chat_template.jinja", "chat_template.json"});
  const std::string name = "tokenizer_config.json", config = text_if_file(tokenizer_directory, name);
  if (config.empty()) return;
  Json json = parse_json(config, tokenizer_directory + "/" + name);
  if (!json.contains("chat_template")) return;
  json["chat_template"] = text;  // read by programs that do not know the other file
  files.written.emplace_back(name, json.dump(2) + "\n");
  files.left_out.insert(name);
}

// Padding must not look like an end, since trainers mask it. Without the key, transformers chooses a token itself.
bool drop_pad(Json& json, const std::vector<int32_t>& ends) {
  const auto pad = json.find("pad_token_id");
  if (pad == json.end() || !pad->is_number_integer()) return false;
  const auto id = pad->get<int64_t>();
  if (std::find(ends.begin(), ends.end(), id) == ends.end()) return false;
  json.erase("pad_token_id");
  log::counted_warning("export without pad_token_id",
                       fmt::format("the export leaves out pad_token_id {} of generation_config.json, since that token "
                                   "also ends texts (eos_token_id); name another token there if a program needs one",
                                   id));
  return true;
}

// Adds the tokens that end the answers of the template to eos_token_id.
void write_stops(const std::string& directory, std::vector<int32_t> stops, ChatFiles& files) {
  std::vector<int32_t> known = read_generation_config(directory).eos_ids;
  std::sort(known.begin(), known.end());
  const bool has_all = std::all_of(stops.begin(), stops.end(),
                                   [&](int32_t id) { return std::binary_search(known.begin(), known.end(), id); });
  const std::string name = "generation_config.json", text = text_if_file(directory, name);
  Json json = text.empty() ? Json::object() : parse_json(text, directory + "/" + name);
  const bool drops_pad = drop_pad(json, has_all ? known : stops);
  if (has_all && !drops_pad) return;
  if (!has_all && stops.size() == 1)
    json["eos_token_id"] = stops.front();
  else if (!has_all)
    json["eos_token_id"] = stops;
  files.written.emplace_back(name, json.dump(2) + "\n");
  files.left_out.insert(name);
}

// A model that starts from random weights has no such file, and without one no other program knows where texts end.
void write_ends(const PluginTokenizer& tokenizer, const std::string& directory, ChatFiles& files) {
  const std::string name = "generation_config.json";
  if (tokenizer.eos_id() < 0 || !text_if_file(directory, name).empty()) return;
  Json json = {{"eos_token_id", tokenizer.eos_id()}};
  if (tokenizer.bos_id() >= 0) json["bos_token_id"] = tokenizer.bos_id();
  files.written.emplace_back(name, json.dump(2) + "\n");
}

}  // namespace

ChatFiles chat_files(const Session& session, const std::string& tokenizer_directory) {
  const Settings& settings = session.settings();
  ChatFiles files;
  if (session.tokenizer() == nullptr || tokenizer_directory.empty()) return files;
  if (!trains_chats(settings)) {
    if (!settings.model.path.is_set()) write_ends(*session.tokenizer(), generation_directory(settings), files);
    return files;
  }
  const ChatConfig chat = chat_config(settings, session.tokenizer());
  const ChatRenderer renderer(*session.tokenizer(), chat);
  if (const std::string text = trained_template(settings, chat); !text.empty()) {
    write_template(text, tokenizer_directory, files);
  } else if (!chat.default_system.empty()) {
    log::counted_warning("export without default system message",
                         "the chat template of the export is the tokenizer's own, which does not write "
                         "data.default_system: give this system message with each conversation");
  }
  write_stops(generation_directory(settings), renderer.stop_ids(), files);
  return files;
}

}  // namespace chassis
