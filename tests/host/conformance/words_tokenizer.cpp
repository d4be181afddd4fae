// A tokenizer for tests that needs files, trains a vocabulary and renders ChatML: bytes, five special tokens, and the
// words of words.txt. It reads no template; it recognises what the tests of conformance ask of one. The environment
// variable NONCONFORMING selects a fault.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/tokenizer.hpp"

namespace {

using namespace chassis;

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

constexpr std::string_view kSpecial[] = {"<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"};
constexpr int32_t kFirstSpecial = 256, kFirstWord = 261;
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class WordsReader : public Tokenizer {
 public:
  static constexpr std::string_view kId = "words_reader";
  static constexpr std::string_view kDoc = "test: bytes and the words of words.txt";
  using Tokenizer::Tokenizer;

  void open(std::string_view directory) override {
    if (directory.empty()) fail_invalid(has("no reason") ? "" : "it needs a directory with words.txt");
    std::ifstream file(std::string(directory) + "/words.txt");
    if (!file) fail_invalid("there is no ", directory, "/words.txt");
    for (int byte = 0; byte < kFirstSpecial; ++byte) {
      char text[8] = {static_cast<char>(byte)};
      if (byte < ' ' || byte > '~') std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
      texts_.emplace_back(text);
    }
    texts_.insert(texts_.end(), std::begin(kSpecial), std::end(kSpecial));
    uint64_t hash = 14695981039346656037u;
    for (std::string line; std::getline(file, line);) {
      for (const char c : line + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
      words_.emplace(line, static_cast<int32_t>(texts_.size()));
      texts_.push_back(line);
    }
    fingerprint_ = has("constant fingerprint") ? "words" : "words-" + std::to_string(hash);
  }

  TokenizerInfo info() const override {
    return {.bos_id = 256,
            .eos_id = 257,
            .pad_id = 258,
            .vocab_size = static_cast<int64_t>(texts_.size()),
            .fingerprint = fingerprint_,
            .chat_template = "{% for m in messages %}…"};
  }

  void encode(std::string_view text, bool special, Tokens& out) const override {
    if (has("finds special")) special = true;
    if (has("misses special")) special = false;
    for (size_t i = 0; i < text.size();) {
      int32_t id = static_cast<unsigned char>(text[i]);
      size_t length = 1;
      for (size_t s = 0; special && s < std::size(kSpecial); ++s)
        if (text.substr(i).starts_with(kSpecial[s]))
          id = kFirstSpecial + static_cast<int32_t>(s), length = kSpecial[s].size();
      if (is_letter(text[i])) {
        size_t end = i;
        while (end < text.size() && is_letter(text[end])) ++end;
        if (const auto word = words_.find(text.substr(i, end - i)); word != words_.end())
          id = word->second, length = end - i;
      }
      const bool skips = has("covers nothing") && i == 4;
      out.push(has("id outside") ? 1 << 20 : id, has("begins back") && i > 3 ? 0 : i,
               skips                                                                        ? i
               : has("ends outside") && i == 0                                              ? text.size() + 1
               : has("overlaps") && i + length < text.size()                                ? i + length + 1
               : has("counts characters") && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80 ? i
                                                                                            : i + length);
      i += length;
    }
    ++num_encodings_;
    if (has("exits")) std::exit(0);
    if (has("wrong in long texts") && out.ids().size() > 4096) out.push('x', text.size(), text.size());
    if (has("wrong after calls") && num_encodings_ > 2000) out.push('x', text.size(), text.size());
    if (has("leaves threads") && num_encodings_ % 100 == 0) {
      static std::mutex mutex;
      static std::vector<std::jthread> threads;
      const std::lock_guard lock(mutex);
      threads.emplace_back([](std::stop_token end) {
        while (!end.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    }
    if (has("depends on calls") && ++num_calls_ % 2 == 0) out.push('x', text.size(), text.size());
  }

  void decode(std::span<const int32_t> ids, bool keep_special, std::string& out) const override {
    for (const int32_t id : ids) {
      if (!has("any id")) check_id(id, static_cast<int64_t>(texts_.size()));
      if (id < 0 || id >= static_cast<int32_t>(texts_.size())) continue;
      const bool is_special = id >= kFirstSpecial && id < kFirstWord;
      if (is_special && (has("drops special") || !(keep_special || has("keeps special")))) continue;
      if (id < kFirstSpecial)
        out += static_cast<char>(has("upper case") && is_letter(static_cast<char>(id)) ? id & ~0x20 : id);
      else
        out += texts_[static_cast<size_t>(id)];
    }
  }

  TokenInfo token(int32_t id) const override {
    check_id(id, static_cast<int64_t>(texts_.size()));
    const bool is_special = id >= kFirstSpecial && id < kFirstWord;
    return {.text = has("not UTF-8") ? "\xFF" : std::string_view(texts_[static_cast<size_t>(id)]),
            .special = is_special && !has("no special flag"),
            .added = is_special};
  }

  int32_t id_of(std::string_view text) const override {
    for (size_t id = 0; id < texts_.size(); ++id)
      if (texts_[id] == text) return static_cast<int32_t>(has("another id") && id == 70 ? 71 : id);
    return has("any text") ? 0 : -1;
  }

  void render(const Chat& chat, ChatSink& out) const override {
    const std::string_view source = chat.template_text;
    const auto contains = [&](std::string_view words) { return source.find(words) != std::string_view::npos; };
    if (contains("raise_exception") && !has("accepts"))
      fail_invalid(has("other words") ? "no" : "roles must alternate");
    if (contains("range(") && !has("loops")) fail_invalid("the template takes too many steps");
    if (contains("{% for") && !contains("{% endfor")) fail_invalid(has("no words") ? "" : "the template has no end");
    const std::string_view stop = "<|im_end|>", newline = has("no newline") ? "" : "\n";
    const bool whole = contains("{% generation %}");
    std::string text;
    struct Span {
      uint64_t message, begin, end;
    };
    std::vector<Span> spans;
    const auto messages = nlohmann::json::parse(chat.messages_json);
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto role = messages[i].at("role").get<std::string>();
      text += "<|im_start|>" + role + "\n";
      const size_t begin = text.size();
      text += messages[i].at("content").get<std::string>();
      const size_t end = text.size();
      text += stop;
      if (role == "assistant") spans.push_back({i, begin, whole ? text.size() : end + (has("long span") ? 1 : 0)});
      text += newline;
    }
    if (chat.generation_prompt) text += "<|im_start|>assistant\n";
    if (has("unproven")) throw Failure(CHASSIS_FAILED_PRECONDITION, "not proven");
    out.text(text);
    if (chat.spans)
      for (const Span& span : spans)
        out.span(whole ? CHASSIS_LEAF_GENERATION : CHASSIS_LEAF_CONTENT, span.message, span.begin, span.end);
  }

 private:
  std::vector<std::string> texts_;  // bytes that are not printable ASCII as "<0x0A>"
  std::map<std::string, int32_t, std::less<>> words_;
  std::string fingerprint_;
  mutable int num_calls_ = 0;
  mutable std::atomic<int> num_encodings_ = 0;
};

class Words final : public WordsReader {
 public:
  static constexpr std::string_view kId = "words";
  static constexpr std::string_view kDoc = "test: the same, and trains a vocabulary";
  using WordsReader::WordsReader;

  void train(const VocabularyRequest& request, TextSource& texts, FileSink& out) override {
    if (request.vocab_size < kFirstWord)
      fail_invalid("a vocabulary of ", request.vocab_size, ", at least ", kFirstWord);
    std::map<std::string, uint64_t> counts;
    while (const auto text = texts.next()) {
      for (size_t i = 0; i < text->size();) {
        size_t end = i;
        while (end < text->size() && is_letter((*text)[end])) ++end;
        if (end > i + 1) ++counts[std::string(text->substr(i, end - i))];
        i = end + 1;
      }
      if (has("reads one text")) break;
    }
    std::vector<std::pair<std::string, uint64_t>> words(counts.begin(), counts.end());
    std::stable_sort(words.begin(), words.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string content;
    const auto room = static_cast<size_t>((has("ignores the size") ? 400 : request.vocab_size) - kFirstWord);
    for (size_t i = 0; i < std::min(words.size(), room); ++i)
      if (words[i].second >= request.min_frequency) content += words[i].first + "\n";
    if (has("depends on threads")) content += std::string(request.num_threads, 'x') + "\n";
    out.file(has("another file") ? "other.txt" : "words.txt", content);
  }
};

}  // namespace

CHASSIS_PLUGIN("file=words.txt\nlicense=Apache-2.0\n", Words, WordsReader)
