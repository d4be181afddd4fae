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

  TokenizerInfo info() const override { return {256, 257, 258, 259, "from_file-1"}; }
  void encode(std::string_view text, IdSink& out) const override {
    for (size_t i = 0; i < text.size(); ++i) out.push(static_cast<unsigned char>(text[i]), i);
  }
  void decode(std::span<const int32_t> ids, ByteSink& out) const override {
    for (int32_t id : ids) {
      const char byte = static_cast<char>(id);
      if (id < 256) out.push({&byte, 1});
    }
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", FromFile)
