// Generates token ids with a model, one at a time for each text, with key-value caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/execute/executor.hpp"
#include "host/generate/sampler.hpp"

namespace chassis {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::string stream = "generate";  // names the random numbers: texts with one seed and other names are independent
  std::vector<int32_t> stop_ids;    // each ends the text
  int64_t vocab_size = 0;  // the tokenizer's; larger ids, which pad the vocabulary, are never chosen; 0: no limit
  bool use_cache = true;   // false: the whole row is computed again for every token
};

enum class Finish { kStopId, kLength, kStoppedByCaller };

struct Generated {
  std::vector<int32_t> ids;  // without the prompt and the stop id
  Finish finish = Finish::kLength;
  uint64_t num_masked = 0;  // number of times that the most likely id was not in the vocabulary
};

// Keys and values of a row, reused for another row with the same beginning.
class CachedRow {
 public:
  // Keeps the part that `row` also begins with, but not the last token of `row`, and makes room for `capacity`
  // positions. Returns the number of positions kept.
  size_t begin_with(const std::vector<int32_t>& row, int64_t capacity);
  // `row` begins with the ids that are kept.
  void append(std::span<const int32_t> row) {
    ids_.insert(ids_.end(), row.begin() + static_cast<ptrdiff_t>(ids_.size()), row.end());
    num_computed_ = row.size();
  }
  // Keeps nothing; the room stays.
  void forget();
  // The length of the row when its last position was computed; 0 if nothing is kept.
  size_t num_computed() const { return num_computed_; }
  KeyValueCache& cache() { return cache_; }

 private:
  size_t num_computed_ = 0;
  std::vector<int32_t> ids_;  // ids of the positions in the cache
  KeyValueCache cache_{0};
};

// A text to be generated.
struct TextRequest {
  std::vector<int32_t> prompt;
  GenerateOptions options;
  std::function<bool(int32_t)> on_token = {};  // called with each new token; false ends the text after it
  std::function<void(Generated)> on_end = {};
  // Only the positions that it does not hold are computed, and this row is left in it. It must outlive the text.
  CachedRow* cached = nullptr;
};

// Texts that are generated at once: each joins and leaves between two steps, and gets the tokens that it would get
// alone. Weights are read once for the tokens of all texts.
class TextBatch {
 public:
  TextBatch();
  ~TextBatch();
  TextBatch(TextBatch&&) noexcept;
  TextBatch& operator=(TextBatch&&) = delete;

  // Throws a config error if the prompt is empty.
  void add(TextRequest request);
  size_t num_texts() const { return texts_.size(); }
  // Ends all texts without a call of on_end.
  void clear();
  // [step] Computes the next token of every text, or a part of its prompt if that is long. Calls on_token and on_end,
  // which may add texts. Throws a numeric error if a model's scores are not numbers, and what the callbacks throw; the
  // texts must then be dropped.
  void step(Executor& executor, Device device);

 private:
  struct Text;

  static void compute(Executor& executor, Device device, std::span<Text* const> texts, bool has_caches);

  std::vector<std::unique_ptr<Text>> texts_;
};

// [step] Generates one text. Throws a config error if the prompt is empty.
Generated generate(Executor& executor, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                   Device device, const std::function<bool(int32_t)>& on_token, CachedRow* cached = nullptr);

}  // namespace chassis
