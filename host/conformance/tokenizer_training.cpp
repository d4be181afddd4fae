// Trains a small vocabulary from generated texts.
#include <fmt/core.h>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/tokenizer_calls.hpp"
#include "host/conformance/tokenizer_checks.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {


// The same texts each time, of a few words that occur often.
std::vector<std::string> training_texts(bool of_other_words = false) {
  constexpr const char* kWords[] = {"the ",    "training ", "of ",    "a ",    "vocabulary ", "größer ",
                                    "日本語 ", "merges ",   "pairs ", "that ", "occur ",      "often.\n"};
  constexpr const char* kOtherWords[] = {"quick ", "brown ", "fox ",  "jumps ",  "over ",  "lazy ",
                                         "dogs ",  "while ", "рыба ", "sleeps ", "under ", "trees.\n"};
  const auto& words = of_other_words ? kOtherWords : kWords;
  std::vector<std::string> texts;
  uint32_t random = 1;
  for (int i = 0; i < 300; ++i) {
    std::string& text = texts.emplace_back();
    for (int word = 0; word < 20; ++word) {
      random = random * 1664525u + 1013904223u;
      text += words[(random >> 16) % std::size(words)];
    }
  }
  texts.emplace_back();
  return texts;
}

// The size of the vocabulary that is made if `vocab_size` is requested; 0 if that is refused.
int64_t trained_size(const std::function<TokenizerSubject()>& make, int64_t vocab_size) {
  TokenizerFiles files;
  try {
    files = trained_files(make(), 1, {.vocab_size = vocab_size});
  } catch (const Error&) {
    return 0;
  }
  const TokenizerFolder folder(files);
  const TokenizerSubject opened = make();
  tokenizer_calls::open(opened, folder.path());
  return tokenizer_calls::info(opened).vocab_size;
}

}  // namespace

std::vector<std::string> trained_samples(const TrainedVocabulary& wanted) {
  std::vector<std::string> texts = training_texts(wanted.of_other_words);
  texts.resize(4);
  return texts;
}

TokenizerFiles trained_files(const TokenizerSubject& not_open, uint32_t num_threads, const TrainedVocabulary& wanted) {
  struct Source {
    std::vector<std::string> texts;
    size_t next = 0;
  } texts{training_texts(wanted.of_other_words)};
  const chassis_text_source_t source = {sizeof source, 0, &texts,
                                        [](const chassis_text_source_t* self, chassis_str_t* text, uint32_t* is_end) {
                                          Source& texts = *static_cast<Source*>(self->impl);
                                          *is_end = texts.next == texts.texts.size() ? 1 : 0;
                                          *text = *is_end ? chassis_str_t{} : str_of(texts.texts[texts.next++]);
                                          return static_cast<chassis_status_t*>(nullptr);
                                        }};
  TokenizerFiles files;
  const chassis_file_sink_t sink = {
      sizeof sink, 0, &files, [](const chassis_file_sink_t* self, chassis_str_t name, chassis_str_t content) {
        TokenizerFiles& files = *static_cast<TokenizerFiles*>(self->impl);
        return guarded([&] {
          const std::string text(view_of(name));
          if (text.empty() || text.find('/') != std::string::npos)
            throw plugin_error("train makes a file '" + printable(text) + "', expected a name without a folder");
          if (!files.emplace(text, view_of(content)).second)
            throw plugin_error("train makes the file '" + printable(text) + "' twice");
        });
      }};
  const chassis_vocabulary_t vocabulary = {sizeof vocabulary, num_threads, wanted.vocab_size, 2};
  const PluginCall call(call_site(not_open.label), "train");
  throw_if_failed(not_open.table->train(not_open.self, &vocabulary, &source, &sink), not_open.label + ": train");
  if (files.empty()) throw plugin_error(not_open.label + ": train makes no file");
  if (texts.next != texts.texts.size())
    throw plugin_error(fmt::format("{}: train reads {} of {} texts", not_open.label, texts.next, texts.texts.size()));
  return files;
}

std::vector<std::string> training_failures(const std::function<TokenizerSubject()>& make) {
  std::vector<std::string> failures;
  try {
    const TokenizerFiles files = trained_files(make());
    for (const uint32_t num_threads : {1u, 4u})
      if (trained_files(make(), num_threads) != files)
        failures.push_back(fmt::format("train: other files for the same texts with {} threads", num_threads));
    const TokenizerFolder folder(files);
    const TokenizerSubject opened = make();
    tokenizer_calls::open(opened, folder.path());
    const int64_t size = tokenizer_calls::info(opened).vocab_size, most = TrainedVocabulary().vocab_size;
    if (size < 1 || size > most)
      failures.push_back(fmt::format("train: a vocabulary of {} ids, at most {} are wanted", size, most));
    if (const int64_t smaller = trained_size(make, size - 1); smaller > size - 1)
      failures.push_back(fmt::format("train: a vocabulary of {} ids, at most {} are wanted", smaller, size - 1));
    for (const std::string& text : training_texts()) {
      const std::string back = tokenizer_calls::decode(opened, tokenizer_calls::encode(opened, text).ids);
      if (back == text) continue;
      failures.push_back("train: '" + printable(text) + "' is decoded as '" + printable(back) + "'");
      break;
    }
  } catch (const tokenizer_calls::Refused& refused) {
    failures.push_back("train: its files cannot be used: " + refused.text);
  } catch (const Error& error) {
    failures.push_back(error.message());
  }
  return failures;
}

TokenizerFolder::TokenizerFolder(const TokenizerFiles& files) {
  for (const auto& [name, content] : files) write_file_atomic(path() + "/" + name, content);
}

}  // namespace chassis
