// Adapts a tokenizer plugin to the host's Tokenizer. Checks everything that
// the plugin returns (ids, offsets, spans, the vocabulary), so that errors name the plugin.
#pragma once

#include <functional>
#include <limits>
#include <memory>

#include "chassis/kind/tokenizer.h"
#include "host/data/tokenizer.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

struct VocabularyOptions {
  int64_t vocab_size = 0;      // with special tokens
  uint64_t min_frequency = 0;  // pairs that occur less often are not merged
  uint32_t num_threads = 1;
};
// Gives the next text, valid until the next call; false after the last one. May throw.
using NextText = std::function<bool(std::string_view& text)>;
// Takes a file of the new tokenizer. May throw.
using TokenizerFile = std::function<void(const std::string& name, std::string_view content)>;

// [control] Makes a vocabulary with a plugin, which must not have been opened. Throws a config error if it offers no
// training. Rethrows what the functions throw.
void train_vocabulary(Instance& instance, const VocabularyOptions& options, const NextText& next,
                      const TokenizerFile& file);

class PluginTokenizer final : public Tokenizer {
 public:
  // Opens the tokenizer of `directory`; empty: there is none.
  explicit PluginTokenizer(std::unique_ptr<Instance> instance, const std::string& directory = "");

  // The id of the member.
  const std::string& id() const { return instance_->id(); }
  // The directory whose files it has read; empty if it reads none.
  const std::string& directory() const { return directory_; }
  // From now on, refuses texts with an id that the model's vocabulary does not have.
  void set_model_vocab(int64_t vocab_size) { model_vocab_ = vocab_size; }
  // The names or patterns of the tokenizer files that the plugin's manifest lists.
  const std::vector<std::string>& files() const { return instance_->library().manifest().files; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool special = true) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int64_t vocab_size() const override { return info_.vocab_size; }
  int32_t bos_id() const override { return info_.bos_id; }
  int32_t eos_id() const override { return info_.eos_id; }
  int32_t pad_id() const override { return info_.pad_id; }
  bool adds_bos() const override { return (info_.flags & CHASSIS_TOKENIZER_ADDS_BOS) != 0; }
  std::string fingerprint() const override { return fingerprint_; }
  std::string build() const override {
    return "sha256:" + instance_->library().sha256() + " " + instance_->context().options.dump() + files_hash_;
  }
  TokenText token(int32_t id) const override;
  int32_t id_of(std::string_view text) const override;
  std::string chat_template() const override { return chat_template_; }
  RenderedChat render(const ChatRequest& chat) const override;

 private:
  void check_info() const;
  void check_encoding(std::string_view text, const Encoding& encoding) const;
  void check_spans(const ChatRequest& chat, const RenderedChat& rendered) const;
  Error above_model(int32_t id) const;
  Error refusal(const std::string& what) const;

  std::unique_ptr<Instance> instance_;
  chassis_tokenizer_t table_;
  chassis_tokenizer_info_t info_{};
  int64_t model_vocab_ = std::numeric_limits<int64_t>::max();
  std::string fingerprint_, chat_template_, directory_;
  std::string files_hash_;  // " files:…"; empty if it has read none
};

}  // namespace chassis
