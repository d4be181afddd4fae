// Calls a tokenizer plugin and checks every result.
#include "host/text/plugin_tokenizer.hpp"

#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"
#include "host/text/tokenizer_limits.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMostFingerprintBytes = 4096;

// Keeps the ids of one text. A sink cannot fail, so a fault of a call is reported after encode has returned.
class OneText {
 public:
  explicit OneText(std::string_view text) : max_num_ids_(max_num_ids(text.size())) {
    raw_.struct_size = sizeof raw_;
    raw_.impl = this;
    raw_.tokens = [](const chassis_token_sink_t* sink, uint64_t index, const int32_t* ids, const uint64_t* begin,
                     const uint64_t* end, uint64_t count) {
      OneText& self = *static_cast<OneText*>(sink->impl);
      guarded_void([&] { self.add(index, ids, begin, end, count); });
    };
  }
  OneText(const OneText&) = delete;
  OneText& operator=(const OneText&) = delete;

  const chassis_token_sink_t* get() const { return &raw_; }
  Encoding& encoding() { return encoding_; }
  // Empty if the sink was called correctly.
  std::string fault() const { return num_calls_ == 0 ? "passes no ids of the text to the sink" : fault_; }

 private:
  void add(uint64_t index, const int32_t* ids, const uint64_t* begin, const uint64_t* end, uint64_t count) {
    if (++num_calls_ > 1) {
      fault_ = "calls the sink " + std::to_string(num_calls_) + " times for 1 text";
    } else if (index != 0) {
      fault_ = "passes the ids of text " + std::to_string(index) + " of 1 text";
    } else if (count > max_num_ids_) {
      fault_ = "makes " + std::to_string(count) + " ids of the text, at most " + std::to_string(max_num_ids_);
    } else if (count > 0 && (ids == nullptr || begin == nullptr || end == nullptr)) {
      fault_ = "passes " + std::to_string(count) + " ids without their array, or without offsets";
    } else if (count > 0) {
      fault_ = "runs out of memory";
      encoding_.ids.assign(ids, ids + count);
      encoding_.begin.assign(begin, begin + count);
      encoding_.end.assign(end, end + count);
      fault_.clear();
    }
  }

  uint64_t max_num_ids_, num_calls_ = 0;
  std::string fault_;
  Encoding encoding_;
  chassis_token_sink_t raw_{};
};

class ChatText {
 public:
  ChatText() {
    raw_.struct_size = sizeof raw_;
    raw_.impl = this;
    raw_.text = [](const chassis_chat_sink_t* sink, chassis_str_t text) {
      ChatText& self = *static_cast<ChatText*>(sink->impl);
      ++self.num_texts_;
      guarded_void([&] { self.rendered_.text = std::string(view_of(text)); });
    };
    raw_.span = [](const chassis_chat_sink_t* sink, const chassis_chat_span_t* span) {
      ChatText& self = *static_cast<ChatText*>(sink->impl);
      self.span_before_text_ |= self.num_texts_ == 0;
      if (span == nullptr || span->struct_size < CHASSIS_CHAT_SPAN_V1_SIZE) {
        self.short_span_ = true;
        return;
      }
      guarded_void([&] {
        self.rendered_.spans.push_back({static_cast<ChatLeaf>(span->leaf), span->message, span->begin, span->end});
      });
    };
  }
  ChatText(const ChatText&) = delete;
  ChatText& operator=(const ChatText&) = delete;

  const chassis_chat_sink_t* get() const { return &raw_; }
  RenderedChat& rendered() { return rendered_; }
  std::string fault() const {
    if (num_texts_ != 1) return "passes " + std::to_string(num_texts_) + " texts to the sink, expected 1";
    if (short_span_) return "passes a span that is shorter than its first version";
    return span_before_text_ ? "passes a span before the text" : "";
  }

 private:
  int num_texts_ = 0;
  bool span_before_text_ = false, short_span_ = false;
  RenderedChat rendered_;
  chassis_chat_sink_t raw_{};
};

// A function that a plugin calls back and that may throw: keeps the first exception, and throws it after the call.
template <class Function>
struct Callback {
  const Function& function;
  std::exception_ptr thrown = {};

  template <class Body>
  chassis_status_t* run(Body&& body) noexcept {
    return guarded([&] {
      try {
        body();
      } catch (...) {
        if (!thrown) thrown = std::current_exception();
        throw;
      }
    });
  }
};

}  // namespace

PluginTokenizer::PluginTokenizer(std::unique_ptr<Instance> instance, const std::string& directory)
    : instance_(std::move(instance)), table_(instance_->interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID)) {
  instance_->require(CHASSIS_TOKENIZER_ID, {{"info", table_.info != nullptr},
                                            {"encode", table_.encode != nullptr},
                                            {"decode", table_.decode != nullptr},
                                            {"token", table_.token != nullptr},
                                            {"id_of", table_.id_of != nullptr}});
  if (table_.open != nullptr) {
    instance_->call("open", [&](auto* self) { return table_.open(self, str_of(directory)); });
    directory_ = directory;
    // Part of build(), so that a wrong fingerprint cannot lead to ids of another vocabulary.
    if (const std::string hash = directory.empty() ? "" : hash_of_tokenizer_files(directory, files()); !hash.empty())
      files_hash_ = " files:" + hash;
  }
  info_.struct_size = sizeof info_;
  info_.bos_id = info_.eos_id = info_.pad_id = info_.unk_id = -1;
  instance_->call("info", [&](auto* self) { return table_.info(self, &info_); });
  check_info();
  fingerprint_ = instance_->id() + ":" + std::string(view_of(info_.fingerprint));
  chat_template_ = std::string(view_of(info_.chat_template));
}

Error PluginTokenizer::refusal(const std::string& what) const { return plugin_error(instance_->label() + ": " + what); }

void PluginTokenizer::check_info() const {
  if (info_.vocab_size < 1 || info_.vocab_size > std::numeric_limits<int32_t>::max())
    throw refusal("its vocabulary has " + std::to_string(info_.vocab_size) + " ids, expected 1 to 2147483647");
  const std::pair<const char*, int32_t> specials[] = {
      {"bos_id", info_.bos_id}, {"eos_id", info_.eos_id}, {"pad_id", info_.pad_id}, {"unk_id", info_.unk_id}};
  for (const auto& [name, id] : specials)
    if (id < -1 || id >= info_.vocab_size)
      throw refusal(std::string(name) + " is " + std::to_string(id) + ", expected -1 (none) or an id below " +
                    std::to_string(info_.vocab_size));
  if (adds_bos() && info_.bos_id < 0) throw refusal("documents begin with bos_id, which it does not have");
  if (!info_.fingerprint.ptr || info_.fingerprint.len == 0)
    throw refusal("its fingerprint is empty, so its tokens cannot be distinguished from those of another tokenizer");
  if (info_.fingerprint.len > kMostFingerprintBytes)
    throw refusal("its fingerprint has " + std::to_string(info_.fingerprint.len) + " bytes, at most " +
                  std::to_string(kMostFingerprintBytes));
}

void PluginTokenizer::check_encoding(std::string_view text, const Encoding& encoding) const {
  const auto wrong = [&](size_t i, const std::string& what) {
    return refusal("encode makes id " + std::to_string(encoding.ids[i]) + " at place " + std::to_string(i) + " of \"" +
                   printable(text, 80) + "\"; " + what);
  };
  uint64_t before = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.ids[i] < 0 || encoding.ids[i] >= info_.vocab_size)
      throw wrong(i, "its vocabulary has " + std::to_string(info_.vocab_size) + " ids");
    if (encoding.ids[i] >= model_vocab_) throw above_model(encoding.ids[i]);
    const uint64_t begin = encoding.begin[i], end = encoding.end[i];
    if (end < begin || end > text.size())
      throw wrong(i, "it covers bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of a text of " +
                         std::to_string(text.size()));
    if (begin < before)
      throw wrong(
          i, "it begins at byte " + std::to_string(begin) + ", the one before it at byte " + std::to_string(before));
    before = begin;
  }
}

Error PluginTokenizer::above_model(int32_t id) const {
  return config_error("the text has the token " + printable(token(id).text, 60) + " (id " + std::to_string(id) +
                      "), and the model's vocabulary has " + std::to_string(model_vocab_) + " ids")
      .hint("leave the token out of the data, or train a model with a larger vocab_size");
}

void PluginTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  ids = encode_with_offsets(text).ids;
}

Encoding PluginTokenizer::encode_with_offsets(std::string_view text, bool special) const {
  OneText sink(text);
  const chassis_str_t texts[] = {str_of(text)};
  instance_->call("encode", [&](auto* self) {
    return table_.encode(self, texts, 1, special ? CHASSIS_ENCODE_SPECIAL : 0, sink.get());
  });
  if (const std::string fault = sink.fault(); !fault.empty()) throw refusal("encode " + fault);
  check_encoding(text, sink.encoding());
  return std::move(sink.encoding());
}

std::string PluginTokenizer::decode(std::span<const int32_t> ids, bool keep_special) const {
  TextSink sink;
  instance_->call("decode", [&](auto* self) {
    return table_.decode(self, ids.data(), ids.size(), keep_special ? CHASSIS_DECODE_KEEP_SPECIAL : 0, sink.get());
  });
  std::string text = sink.take();
  if (const uint64_t most = max_num_bytes(ids.size()); text.size() > most)
    throw refusal("decode makes " + std::to_string(text.size()) + " bytes of " + std::to_string(ids.size()) +
                  " ids, at most " + std::to_string(most));
  return text;
}

TokenText PluginTokenizer::token(int32_t id) const {
  chassis_token_t token{};
  token.struct_size = sizeof token;
  instance_->call("token", [&](auto* self) { return table_.token(self, id, &token); });
  return {std::string(view_of(token.text)), (token.flags & CHASSIS_TOKEN_SPECIAL) != 0,
          (token.flags & CHASSIS_TOKEN_ADDED) != 0, (token.flags & CHASSIS_TOKEN_UNUSED) != 0};
}

int32_t PluginTokenizer::id_of(std::string_view text) const {
  int32_t id = -1;
  instance_->call("id_of", [&](auto* self) { return table_.id_of(self, str_of(text), &id); });
  if (id < -1 || id >= info_.vocab_size)
    throw refusal("id_of \"" + printable(text, 80) + "\" is " + std::to_string(id) + ", its vocabulary has " +
                  std::to_string(info_.vocab_size) + " ids");
  return id;
}

RenderedChat PluginTokenizer::render(const ChatRequest& chat) const {
  if (table_.render == nullptr) throw config_error(instance_->label() + " renders no chat templates");
  chassis_chat_t raw{};
  raw.struct_size = sizeof raw;
  raw.flags = (chat.generation_prompt ? CHASSIS_CHAT_GENERATION_PROMPT : 0) | (chat.spans ? CHASSIS_CHAT_SPANS : 0);
  raw.messages_json = str_of(chat.messages_json);
  raw.tools_json = str_of(chat.tools_json);
  raw.variables_json = str_of(chat.variables_json);
  raw.template_text = str_of(chat.template_text);
  raw.unix_time_s = chat.unix_time_s;
  ChatText sink;
  chassis_status_t* const status =
      call_plugin([&] { return table_.render(instance_->get("render"), &raw, sink.get()); });
  const bool is_unproven = status != nullptr && chat.spans && status_code(status) == CHASSIS_FAILED_PRECONDITION;
  try {
    instance_->check(status);
  } catch (const Error& error) {
    if (is_unproven) throw ChatSpansUnproven(ExitCode::kConfig, error.message());
    throw;
  }
  if (const std::string fault = sink.fault(); !fault.empty()) throw refusal("render " + fault);
  check_spans(chat, sink.rendered());
  return std::move(sink.rendered());
}

void PluginTokenizer::check_spans(const ChatRequest& chat, const RenderedChat& rendered) const {
  if (rendered.spans.empty()) return;
  if (!chat.spans) throw refusal("render passes spans that are not wanted");
  const uint64_t num_messages = parse_json(chat.messages_json, "the messages").size();
  uint64_t before = 0;
  for (size_t i = 0; i < rendered.spans.size(); ++i) {
    const ChatSpan& span = rendered.spans[i];
    const auto wrong = [&](const std::string& what) {
      return refusal("render passes span " + std::to_string(i) + ", bytes " + std::to_string(span.begin) + " to " +
                     std::to_string(span.end) + " of a text of " + std::to_string(rendered.text.size()) + "; " + what);
    };
    const auto leaf = static_cast<uint32_t>(span.leaf);
    if (span.end < span.begin || span.end > rendered.text.size()) throw wrong("it is not inside the text");
    if (span.begin < before) throw wrong("the one before it ends at byte " + std::to_string(before));
    if (span.message >= num_messages)
      throw wrong("its message is number " + std::to_string(span.message) + " of " + std::to_string(num_messages));
    if (leaf < CHASSIS_LEAF_CONTENT || leaf > CHASSIS_LEAF_GENERATION)
      throw wrong("its leaf is " + std::to_string(leaf) + ", expected 1 to 4");
    before = span.end;
  }
}

void train_vocabulary(Instance& instance, const VocabularyOptions& options, const NextText& next,
                      const TokenizerFile& file) {
  const auto* table = instance.interface_or_null<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID);
  if (table == nullptr || table->train == nullptr) throw config_error(instance.label() + " trains no vocabulary");
  Callback<NextText> read{next};
  const chassis_text_source_t source = {sizeof source, 0, &read,
                                        [](const chassis_text_source_t* self, chassis_str_t* text, uint32_t* is_end) {
                                          auto& callback = *static_cast<Callback<NextText>*>(self->impl);
                                          return callback.run([&] {
                                            std::string_view view;
                                            *is_end = callback.function(view) ? 0 : 1;
                                            *text = *is_end ? chassis_str_t{} : str_of(view);
                                          });
                                        }};
  struct Write : Callback<TokenizerFile> {
    std::set<std::string> names;
    std::string label;
  } write{{file}, {}, instance.label()};
  const chassis_file_sink_t sink = {
      sizeof sink, 0, &write, [](const chassis_file_sink_t* self, chassis_str_t name, chassis_str_t content) {
        Write& callback = *static_cast<Write*>(self->impl);
        return callback.run([&] {
          const std::string text(view_of(name));
          if (text.empty() || text == "." || text == ".." ||
              text.find_first_of(std::string_view("/\0", 2)) != text.npos)
            throw plugin_error(callback.label + ": train makes a file '" + printable(text) +
                               "', expected a name without a folder");
          if (!callback.names.insert(text).second)
            throw plugin_error(callback.label + ": train makes the file '" + printable(text) + "' twice");
          callback.function(text, view_of(content));
        });
      }};
  const chassis_vocabulary_t vocabulary = {sizeof vocabulary, options.num_threads, options.vocab_size,
                                           options.min_frequency};
  chassis_status_t* const status =
      call_plugin([&] { return table->train(instance.get("train"), &vocabulary, &source, &sink); });
  const std::exception_ptr thrown = read.thrown ? read.thrown : write.thrown;
  if (thrown) {
    status_release(status);
    std::rethrow_exception(thrown);
  }
  instance.check(status);
  if (write.names.empty()) throw plugin_error(instance.label() + ": train makes no file");
}

}  // namespace chassis
