// The tokenizer "bytes": every byte is a token, plus three special ids. It encodes any text without a vocabulary file.
// No text spells the special ids: in a text, "<eos>" is five bytes.
#include <array>
#include <cstdio>

#include "chassis/plugin.hpp"
#include "chassis/tokenizer.hpp"

namespace {

using namespace chassis;

constexpr int32_t kBos = 256, kEos = 257, kPad = 258, kVocab = 259;

class Bytes final : public Tokenizer {
 public:
  static constexpr std::string_view kDoc = "bytes as tokens: 256 ids, then bos, eos, pad";

  explicit Bytes(const Host& host) : Tokenizer(host) {
    for (int32_t byte = 0; byte < kBos; ++byte) {
      char text[8] = {static_cast<char>(byte)};
      if (byte < ' ' || byte > '~') std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
      texts_[static_cast<size_t>(byte)] = text;
    }
    texts_[kBos] = "<bos>";
    texts_[kEos] = "<eos>";
    texts_[kPad] = "<pad>";
  }

  TokenizerInfo info() const override {
    return {.bos_id = kBos,
            .eos_id = kEos,
            .pad_id = kPad,
            .vocab_size = kVocab,
            .fingerprint = "bytes-1",
            .adds_bos = true};
  }

  void encode(std::string_view text, bool, Tokens& out) const override {
    for (size_t i = 0; i < text.size(); ++i) out.push(static_cast<unsigned char>(text[i]), i, i + 1);
  }

  void decode(std::span<const int32_t> ids, bool keep_special, std::string& out) const override {
    for (int32_t id : ids) {
      check_id(id, kVocab);
      if (id < kBos)
        out += static_cast<char>(id);
      else if (keep_special)
        out += texts_[static_cast<size_t>(id)];
    }
  }

  TokenInfo token(int32_t id) const override {
    check_id(id, kVocab);
    return {.text = texts_[static_cast<size_t>(id)], .special = id >= kBos};
  }

  int32_t id_of(std::string_view text) const override {
    for (int32_t id = 0; id < kVocab; ++id)
      if (texts_[static_cast<size_t>(id)] == text) return id;
    return -1;
  }

 private:
  std::array<std::string, kVocab> texts_;  // bytes that are not printable ASCII as "<0x0A>"
};

}  // namespace

CHASSIS_PLUGIN("swappable=1\nlicense=Apache-2.0\n", Bytes)
