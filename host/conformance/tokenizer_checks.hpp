// Conformance tests of a tokenizer. No oracle exists for the ids of an arbitrary vocabulary, so the tests cover the
// properties that data caches, masks, packing and generation rely on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "chassis/kind/tokenizer.h"
#include "host/conformance/temporary_folder.hpp"
#include "host/conformance/tokenizer_subject.hpp"

namespace chassis {

// The *_failures functions return the failures, with the expected values; empty if none. Subjects are open unless
// stated otherwise.

// [any] Tests:
//   - the vocabulary is not empty and has the special ids; the fingerprint is not empty; a second call returns the same
//   - ids are in the vocabulary; offsets are inside the text, do not decrease, and cover what is not white space
//   - a text has the same ids alone, in a batch and in parallel threads
//   - special tokens are found in a text, and decoded, only on request
//   - every token is found by its text; an id outside the vocabulary is OUT_OF_RANGE
//   - decoding restores plain ASCII exactly; any other text, also invalid UTF-8, no longer changes after one round trip
//   - bos, eos and pad are special tokens; ids are the same after many calls, which leave no memory and no threads
//   - a second instance with the same options has the same ids and fingerprint; one of `variants` (other options, other
//     files) that gives some text different ids has a different fingerprint
std::vector<std::string> tokenizer_failures(const TokenizerSubject& tokenizer, const TokenizerSubject& again,
                                            const std::vector<TokenizerSubject>& variants);

// [any] If the tokenizer renders conversations, renders some with templates of the test's own: the text and the spans
// are as expected; a broken, a refusing and an endless template are refused with a message.
std::vector<std::string> chat_failures(const TokenizerSubject& tokenizer);

using TokenizerFiles = std::map<std::string, std::string>;
struct TrainedVocabulary {
  int64_t vocab_size = 400;
  bool of_other_words = false;
};
// [control] Trains a small vocabulary; `not_open` was not opened. Throws an error if it is refused.
TokenizerFiles trained_files(const TokenizerSubject& not_open, uint32_t num_threads = 1,
                             const TrainedVocabulary& wanted = {});
// Some of the texts used for training.
std::vector<std::string> trained_samples(const TrainedVocabulary& wanted);
// [control] Trains a small vocabulary several times: the files are the same for any number of threads, a second
// instance opens them and restores the texts, and the vocabulary is not larger than requested. `make` makes a subject
// that is not open.
std::vector<std::string> training_failures(const std::function<TokenizerSubject()>& make);

// The files of a tokenizer with one change in its vocabulary.
struct AlteredFiles {
  std::string what;  // "the last line of words.txt removed"
  TokenizerFiles files;
  std::vector<std::string> texts;  // texts that may get other ids
};
// Changes each of the files `named`, or each file if the directory has none of them. Leaves out large directories and
// files that are not text.
std::vector<AlteredFiles> altered_files(const std::string& directory, const std::vector<std::string>& named);

// A folder with the files, removed at the end.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const TokenizerFiles& files);
  const std::string& path() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_{"chassis-tokenizer"};
};

}  // namespace chassis
