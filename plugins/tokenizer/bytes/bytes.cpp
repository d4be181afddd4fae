// The tokenizer "bytes": every byte is a token, plus three special ids. Any text, no vocabulary file.
#include "chassis/plugin.hpp"
#include "chassis/tokenizer.hpp"

namespace {

using namespace chassis;

constexpr int32_t kBos = 256, kEos = 257, kPad = 258, kVocab = 259;

class Bytes final : public Tokenizer {
 public:
  static constexpr std::string_view kDoc = "bytes as tokens: 256 ids, then bos, eos, pad";
  using Tokenizer::Tokenizer;

  TokenizerInfo info() const override { return {kBos, kEos, kPad, kVocab, "bytes-1"}; }

  void encode(std::string_view text, IdSink& out) const override {
    for (size_t i = 0; i < text.size(); ++i) out.push(static_cast<unsigned char>(text[i]), i);
  }

  void decode(std::span<const int32_t> ids, ByteSink& out) const override {
    for (int32_t id : ids) {
      if (id < 0 || id >= kVocab) {
        throw Failure(CHASSIS_OUT_OF_RANGE, "token id ", id, " is outside the vocabulary of ", kVocab);
      }
      const char byte = static_cast<char>(id);
      if (id < kBos) out.push({&byte, 1});
    }
  }
};

}  // namespace

CHASSIS_PLUGIN("swappable=1\nlicense=Apache-2.0\n", Bytes)
