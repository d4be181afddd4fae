// Chooses the token among the special ones of the vocabulary.
#include "host/save/pad_token.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/text/run_chat.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxTokenizerFileBytes = uint64_t{64} << 20;

bool has_id(const std::vector<int32_t>& ids, int64_t id) {
  return std::ranges::any_of(ids, [id](int32_t other) { return other == id; });
}

std::string shown(const Tokenizer& tokenizer, int32_t id) {
  return "'" + printable(tokenizer.token(id).text) + "' (id " + std::to_string(id) + ")";
}

// The rank of a token among those that may become the pad token; nothing if it may not.
std::optional<size_t> rank_of(const TokenText& token) {
  if (!token.special && !token.unused) return std::nullopt;
  const std::string text = lower_case(token.text);
  const auto names = [&](std::string_view word) { return text.find(word) != text.npos; };
  if (names("pad")) return 0;
  constexpr std::array<std::string_view, 4> kReserved = {"reserved", "unused", "extra", "placeholder"};
  if (token.unused || std::ranges::any_of(kReserved, names)) return 1;
  if (names("unk")) return 2;
  return std::nullopt;
}

// The id of the best token; -1 if there is none.
int32_t free_token(const Tokenizer& tokenizer, const std::vector<int32_t>& finals, int64_t vocab_size) {
  int32_t best = -1;
  size_t best_rank = 0;
  const int64_t end = std::min(tokenizer.vocab_size(), vocab_size);
  for (int64_t at = 0; at < end; ++at) {
    const auto id = static_cast<int32_t>(at);
    if (has_id(finals, id) || id == tokenizer.bos_id()) continue;
    const std::optional<size_t> rank = rank_of(tokenizer.token(id));
    if (!rank || (best >= 0 && *rank >= best_rank)) continue;
    best = id, best_rank = *rank;
    if (best_rank == 0) break;
  }
  return best;
}

bool has_template(const Settings& settings, const Tokenizer& tokenizer) {
  return settings.data.template_name.by_user() || !tokenizer.chat_template().empty();
}

// The text of a file of the tokenizer as the export will have it; empty if it has none.
std::string text_of(const ChatFiles& files, const std::string& directory, const std::string& name) {
  for (const auto& [other, text] : files.written)
    if (other == name) return text;
  const std::string path = directory + "/" + name;
  return path_kind(path) == PathKind::kAbsent ? "" : read_file(path, kMaxTokenizerFileBytes);
}

}  // namespace

std::vector<int32_t> sample_sequence(const Settings& settings, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (!has_template(settings, tokenizer)) {
    tokenizer.encode("x", ids);
    if (tokenizer.eos_id() >= 0) ids.push_back(tokenizer.eos_id());
    return ids;
  }
  ChatRecord chat;
  for (const char* role : {"user", "assistant"}) {
    Message message;
    message.role = role;
    message.content.push_back({"x", std::nullopt});
    chat.messages.push_back(std::move(message));
  }
  try {
    const ChatRenderer renderer(tokenizer, chat_config(settings, &tokenizer));
    tokenizer.encode(renderer.render(chat, false).text, ids);
  } catch (const Error&) {  // a template that refuses this conversation says so at a row of the data
  }
  return ids;
}

std::vector<int32_t> final_ids(const Settings& settings, const Tokenizer& tokenizer,
                               const std::vector<int32_t>& sample) {
  std::vector<int32_t> finals;
  const auto add = [&](int32_t id) {
    if (id >= 0 && !has_id(finals, id)) finals.push_back(id);
  };
  add(tokenizer.eos_id());
  if (has_template(settings, tokenizer)) {
    const ChatRenderer renderer(tokenizer, chat_config(settings, &tokenizer));
    for (const int32_t id : renderer.stop_ids()) add(id);
  }
  if (!sample.empty()) add(sample.back());
  return finals;
}

PadToken choose_pad_token(const Tokenizer& tokenizer, const std::vector<int32_t>& finals, int64_t vocab_size,
                          int64_t of_model) {
  const int32_t own = tokenizer.pad_id();
  if (own >= 0 && own < vocab_size && !has_id(finals, own)) return {own, tokenizer.token(own).text, false};
  const bool takes_model =
      own < 0 && of_model >= 0 && of_model < std::min(tokenizer.vocab_size(), vocab_size) && !has_id(finals, of_model);
  const int32_t free = takes_model ? static_cast<int32_t>(of_model) : free_token(tokenizer, finals, vocab_size);
  if (own < 0 && free >= 0) return {free, tokenizer.token(free).text, true};
  const std::string needed =
      "; a model that scores sequences needs one that never ends a sequence, since other programs "
      "read the score at the last token that is not padding";
  Error error = config_error(
      own < 0            ? "the tokenizer has no pad token, and none of its special tokens is free to be one" + needed
      : own < vocab_size ? "the tokenizer's pad token " + shown(tokenizer, own) + " also ends sequences" + needed
                         : "the tokenizer's pad token has id " + std::to_string(own) +
                               ", and the model's vocabulary has " + std::to_string(vocab_size) + " ids");
  const std::string where = "pad_token in tokenizer_config.json";
  if (free >= 0)
    error.hint("set " + where + " to another token, such as " + shown(tokenizer, free));
  else
    error.hint("add a special token to the tokenizer, such as \"<pad>\", and name it as " + where);
  throw error;
}

int64_t score_position(std::span<const int32_t> ids, int64_t pad_id) {
  const auto last = static_cast<int64_t>(ids.size()) - 1;
  if (pad_id < 0) return last;
  for (int64_t at = last; at >= 0; --at)
    if (ids[static_cast<size_t>(at)] != pad_id) return at;
  return 0;
}

void require_score_at_end(const std::vector<int32_t>& sequence, int64_t pad_id) {
  if (sequence.empty()) return;
  const auto end = static_cast<int64_t>(sequence.size());
  const std::vector<int32_t> padding(pad_id >= 0 ? 3 : 0, static_cast<int32_t>(pad_id));
  const auto num_pads = static_cast<int64_t>(padding.size());
  for (const int64_t before : {int64_t{0}, num_pads}) {
    std::vector<int32_t> row(padding.begin(), padding.begin() + before);
    row.insert(row.end(), sequence.begin(), sequence.end());
    if (before == 0) row.insert(row.end(), padding.begin(), padding.end());
    const int64_t read = score_position(row, pad_id) - before;
    if (read != end - 1)
      throw config_error("with pad_token_id = " + std::to_string(pad_id) +
                         ", other programs would read the score of a "
                         "sequence of " +
                         std::to_string(end) + " tokens at token " + std::to_string(read + 1) +
                         ", and it is trained at the last")
          .hint("set pad_token in tokenizer_config.json to a token that never ends a sequence");
  }
}

void require_score_at_end_in(const std::string& path, const std::vector<int32_t>& sequence, const SourcePosition& row) {
  const std::string file = path + "/config.json";
  if (path_kind(file) == PathKind::kAbsent) return;
  try {
    require_score_at_end(sequence, json_int_or(parse_json(read_file(file), file), "pad_token_id", -1, file));
  } catch (const Error& cause) {
    if (cause.code() != ExitCode::kConfig || !cause.where().file.empty()) throw;
    throw Error(cause.code(), row, file + ": " + cause.message()).hint(cause.hint_text());
  }
}

void write_pad_token(const PadToken& pad, const std::string& tokenizer_directory, ChatFiles& files) {
  if (!pad.is_new || tokenizer_directory.empty()) return;
  for (const std::string name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string text = text_of(files, tokenizer_directory, name);
    // The second file is one of older versions; the first one suffices.
    if (text.empty() && name != "tokenizer_config.json") continue;
    Json json = text.empty() ? Json::object() : parse_json(text, tokenizer_directory + "/" + name);
    if (!json.is_object()) throw config_error(tokenizer_directory + "/" + name + " is not a JSON object");
    json["pad_token"] = pad.text;
    std::erase_if(files.written, [&](const auto& file) { return file.first == name; });
    files.written.emplace_back(name, json.dump(2) + "\n");
    files.left_out.insert(name);
  }
}

}  // namespace chassis
