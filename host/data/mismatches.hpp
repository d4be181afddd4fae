// Second sequences of labelled documents: the prompt of one with the answer to another, for objectives that measure how
// far answers depend on their prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/document.hpp"

namespace chassis {

// Each sequence of a document gets the answer of the same sequence of the next document that has another prompt; the
// last documents get that of the first one. Holds documents back until that one comes.
class Mismatches {
 public:
  using Take = std::function<void(Document&& document, size_t file)>;
  static constexpr uint64_t kMaxWaitingTokens = uint64_t{32} << 20;

  // `take` receives the documents in their order. `config` must outlive this object.
  Mismatches(const DataSetConfig& config, Take take, uint64_t max_waiting_tokens = kMaxWaitingTokens)
      : config_(config), take_(std::move(take)), max_waiting_tokens_(max_waiting_tokens) {}

  // Throws a config error if documents with one prompt follow each other until they have more than the maximum.
  void add(Document&& document, size_t file);
  // Throws a config error if all documents have one prompt, unless they are only a sample of the set: then they stay
  // without mismatches.
  void finish(bool is_sample = false);

 private:
  struct Waiting {
    Document document;
    size_t file = 0;
  };
  void release(const Document& other);

  const DataSetConfig& config_;
  Take take_;
  uint64_t max_waiting_tokens_;
  std::vector<Waiting> waiting_;  // all have one prompt
  uint64_t num_waiting_tokens_ = 0;
  std::vector<Document> first_;  // the first document of the set, and the first with another prompt
};

}  // namespace chassis
