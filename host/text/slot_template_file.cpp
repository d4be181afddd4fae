// A table of keys: what each may contain, and which member it fills.
#include "host/text/slot_template_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "host/base/hash.hpp"
#include "host/base/printable.hpp"
#include "host/config/suggest.hpp"
#include "host/config/toml_file.hpp"
#include "host/data/chat_renderer.hpp"

namespace chassis {
namespace {

using Names = std::vector<std::string>;

Error error_of(const TomlValue& value, std::string message) {
  return {ExitCode::kConfig, value.origin.where, std::move(message)};
}

class Parser {
 public:
  Parser(const TomlValue& root, const std::string& file) : root_(root), file_(file) {}

  SlotTemplate parse() {
    SlotTemplate t;
    t.name = file_;
    read("bos", t.bos, {});
    read("system", t.system, {"content"});
    read("system_place", t.system_place);
    read("default_system", t.default_system);
    read("user", t.user, {"content"});
    read("assistant_open", t.assistant_open, {});
    read("reasoning", t.reasoning, {"content"});
    read("assistant", t.assistant, {"content"});
    read("assistant_close", t.assistant_close, {});
    read("tool_call", t.tool_call, {"name", "arguments", "id"});
    read("tool_calls_open", t.tool_calls_open, {});
    read("tool_calls_close", t.tool_calls_close, {});
    read("tool_calls_behind_content", t.tool_calls_behind_content, {});
    read("tool_calls_separator", t.tool_calls_separator, {});
    read("tool", t.tool, {"content", "content_json", "id", "name"});
    read("tool_open", t.tool_open, {});
    read("tool_close", t.tool_close, {});
    read("tools_system", t.tools_system, {"tools"});
    read("tools_each", t.tools_each, {"tool"});
    read("tools_separator", t.tools_separator, {});
    read("tools_place", t.tools_place);
    read_stop(t);
    read_strip(t);
    refuse_unknown();
    require(t);
    return t;
  }

 private:
  const TomlValue* find(const std::string& key, ValueType type) {
    known_.push_back(key);
    const TomlValue* value = root_.find(key);
    if (value != nullptr && value->type != type)
      throw error_of(*value, fmt::format("{} must be {}, not {}", key, type_text(type), type_text(value->type)));
    return value;
  }

  TextSlot slot(const TomlValue& value, const std::string& key, Names placeholders) {
    placeholders.insert(placeholders.end(), {"bos", "eos"});
    TextSlot slot;
    try {
      slot = slot_from_text(value.string, placeholders);
    } catch (const Error& error) {
      throw error_of(value, fmt::format("{}: {}", key, error.message()));
    }
    // The slot of a message shows its content once: each byte of the content has one place.
    const bool shows_content = placeholders.front() == "content";
    const auto count = std::count_if(slot.pieces.begin(), slot.pieces.end(), [](const TextSlot::Piece& piece) {
      return piece.placeholder == "content" || piece.placeholder == "content_json";
    });
    if (shows_content && count != 1)
      throw error_of(value, fmt::format("{} must have {{{{content}}}} once, it has it {} times", key, count));
    return slot;
  }

  void read(const std::string& key, TextSlot& out, Names placeholders) {
    if (const TomlValue* value = find(key, ValueType::kString)) out = slot(*value, key, std::move(placeholders));
  }
  void read(const std::string& key, std::optional<TextSlot>& out, Names placeholders) {
    if (const TomlValue* value = find(key, ValueType::kString)) out = slot(*value, key, std::move(placeholders));
  }
  void read(const std::string& key, std::string& out) {
    if (const TomlValue* value = find(key, ValueType::kString)) out = value->string;
  }
  void read(const std::string& key, SlotPlace& out) {
    const TomlValue* value = find(key, ValueType::kString);
    if (value == nullptr) return;
    if (value->string == "first_user")
      out = SlotPlace::kFirstUser;
    else if (value->string == "last_user")
      out = SlotPlace::kLastUser;
    else if (value->string != "own")
      throw error_of(
          *value, fmt::format("{} = {} is not one of \"own\", \"first_user\", \"last_user\"", key, toml_text(*value)));
  }

  // The strings of a list.
  std::vector<const TomlValue*> strings(const std::string& key) {
    std::vector<const TomlValue*> out;
    const TomlValue* list = find(key, ValueType::kArray);
    if (list == nullptr) return out;
    for (const TomlValue& item : list->children) {
      if (item.type != ValueType::kString)
        throw error_of(
            item, fmt::format("{} must be a list of strings; {} is {}", key, toml_text(item), type_text(item.type)));
      out.push_back(&item);
    }
    return out;
  }

  void read_stop(SlotTemplate& t) {
    for (const TomlValue* item : strings("stop")) {
      try {
        t.stop.push_back(slot_from_text(item->string, {"eos"}));
      } catch (const Error& error) {
        throw error_of(*item, "stop: " + error.message());
      }
    }
  }

  void read_strip(SlotTemplate& t) {
    const Names roles = {"system", "user", "assistant", "tool"};
    for (const TomlValue* item : strings("strip")) {
      if (std::find(roles.begin(), roles.end(), item->string) == roles.end())
        throw error_of(*item,
                       fmt::format("strip has the roles system, user, assistant and tool, not {}", toml_text(*item)));
      t.strip.insert(item->string);
    }
  }

  void refuse_unknown() const {
    for (const TomlValue& value : root_.children) {
      if (std::find(known_.begin(), known_.end(), value.name) != known_.end()) continue;
      const std::string meant = nearest(value.name, known_);
      throw Error(ExitCode::kConfig, value.key_where,
                  fmt::format("unknown key '{}' in a chat template{}", printable(value.name),
                              meant.empty() ? "" : " (did you mean '" + meant + "'?)"));
    }
  }

  void require(const SlotTemplate& t) const {
    const auto missing = [&](const std::string& what) { return Error(ExitCode::kConfig, {file_, 0, 0}, what); };
    if (!t.user) throw missing("the key `user` is missing");
    if (!root_.find("assistant")) throw missing("the key `assistant` is missing");
    if (t.stop.empty()) throw missing("the key `stop` is missing: the tokens that end an answer");
    if (!t.default_system.empty() && !t.system) throw missing("default_system needs the key `system`");
    if (t.tools_system && t.tools_place == SlotPlace::kOwn && !t.system)
      throw missing("tools_system needs the key `system`, or tools_place");
  }

  const TomlValue& root_;
  const std::string& file_;
  Names known_;
};

}  // namespace

SlotTemplate parse_slot_template(std::string_view text, const std::string& name) {
  const TomlValue root = parse_toml(text, name);
  SlotTemplate slots = Parser(root, name).parse();
  slots.source_hash = sha256_hex(text).substr(0, 16);
  return slots;
}

std::shared_ptr<const SlotTemplate> builtin_slot_template(std::string_view name) {
  for (const BuiltinTemplate& builtin : builtin_templates())
    if (builtin.name == name)
      return std::make_shared<SlotTemplate>(parse_slot_template(builtin.text, std::string(name)));
  return nullptr;
}

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const BuiltinTemplate& builtin : builtin_templates()) names.emplace_back(builtin.name);
  return names;
}

std::vector<std::string> fitting_template_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  const std::string eos = tokenizer.eos_id() >= 0 ? tokenizer.token(tokenizer.eos_id()).text : "";
  for (const std::string& name : builtin_template_names()) {
    const auto slots = builtin_slot_template(name);
    const bool fits = std::all_of(slots->stop.begin(), slots->stop.end(), [&](const TextSlot& stop) {
      std::string text;
      for (const TextSlot::Piece& piece : stop.pieces) text += piece.text + (piece.placeholder == "eos" ? eos : "");
      return spelled_token(tokenizer, text) >= 0;
    });
    if (fits) names.push_back(name);
  }
  return names;
}

}  // namespace chassis
