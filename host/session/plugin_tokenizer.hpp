// Adapts a tokenizer plugin to the host's Tokenizer. Checks everything that the plugin returns (ids, counts, the
// vocabulary), so that errors name the plugin.
#pragma once

#include <memory>

#include "chassis/kind/tokenizer_1.h"
#include "host/data/tokenizer.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

class PluginTokenizer final : public Tokenizer {
 public:
  explicit PluginTokenizer(std::unique_ptr<Instance> instance);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int64_t vocab_size() const override { return info_.vocab_size; }
  int32_t bos_id() const override { return info_.bos_id; }
  int32_t eos_id() const override { return info_.eos_id; }
  int32_t pad_id() const override { return info_.pad_id; }
  std::string fingerprint() const override { return fingerprint_; }
  std::string build() const override {
    return "sha256:" + instance_->library().sha256() + " " + instance_->context().options.dump();
  }

 private:
  void check_info() const;

  std::unique_ptr<Instance> instance_;
  const chassis_tokenizer_t* table_;
  chassis_tokenizer_info_t info_{};
  std::string fingerprint_;
};

}  // namespace chassis
