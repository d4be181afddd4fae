// A tokenizer for tests with an option `file`: bytes are tokens, and the file is not read.
#include <string>

#include "chassis/plugin.hpp"
#include "chassis/tokenizer.hpp"

namespace {

using namespace chassis;

class FromFile final : public Tokenizer {
 public:
  static constexpr std::string_view kDoc = "bytes as tokens, for tests";
  static const Options& options() {
    static const Options schema = {option("file", "").doc("a tokenizer.json; not read")};
    return schema;
  }
  using Tokenizer::Tokenizer;

  TokenizerInfo info() const override {
    return {
        .bos_id = 256, .eos_id = 257, .pad_id = 258, .vocab_size = 259, .fingerprint = "from_file-1", .adds_bos = true};
  }
  void encode(std::string_view text, bool, Tokens& out) const override {
    for (size_t i = 0; i < text.size(); ++i) out.push(static_cast<unsigned char>(text[i]), i, i + 1);
  }
  void decode(std::span<const int32_t> ids, bool, std::string& out) const override {
    for (int32_t id : ids)
      if (id < 256) out += static_cast<char>(id);
  }
  TokenInfo token(int32_t id) const override {
    check_id(id, 259);
    return {.text = "?", .special = id > 255};
  }
  int32_t id_of(std::string_view text) const override {
    return text.size() == 1 ? static_cast<unsigned char>(text[0]) : -1;
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", FromFile)
