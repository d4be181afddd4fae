// The base of tokenizers: text to ids with byte offsets, and back.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "chassis/kind/tokenizer_1.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// Stores as many ids as the caller has room for, and counts all of them.
class IdSink {
 public:
  IdSink(int32_t* ids, uint64_t* offsets, uint64_t capacity) : ids_(ids), offsets_(offsets), capacity_(capacity) {}
  // An id, and the byte of the text where it starts.
  void push(int32_t id, uint64_t offset) noexcept {
    if (count_ < capacity_) {
      ids_[count_] = id;
      if (offsets_ != nullptr) offsets_[count_] = offset;
    }
    ++count_;
  }
  uint64_t count() const noexcept { return count_; }

 private:
  int32_t* ids_;
  uint64_t* offsets_;
  uint64_t capacity_, count_ = 0;
};

class ByteSink {
 public:
  ByteSink(char* bytes, uint64_t capacity) : bytes_(bytes), capacity_(capacity) {}
  void push(std::string_view bytes) noexcept {
    const uint64_t room = capacity_ - std::min(capacity_, count_);
    if (room > 0) std::memcpy(bytes_ + count_, bytes.data(), std::min<uint64_t>(room, bytes.size()));
    count_ += bytes.size();
  }
  uint64_t count() const noexcept { return count_; }

 private:
  char* bytes_;
  uint64_t capacity_, count_ = 0;
};

struct TokenizerInfo {
  int32_t bos_id = -1, eos_id = -1, pad_id = -1;  // -1: none
  int64_t vocab_size = 0;
  std::string_view fingerprint;  // changes whenever some text would get other ids; lives as long as the instance
};

class Tokenizer : public Member {
 public:
  static constexpr std::string_view kKind = "tokenizer";
  using Member::Member;

  // All [any].
  virtual TokenizerInfo info() const = 0;
  // Without special ids.
  virtual void encode(std::string_view text, IdSink& out) const = 0;
  // Special ids are left out. An id outside the vocabulary is OUT_OF_RANGE.
  virtual void decode(std::span<const int32_t> ids, ByteSink& out) const = 0;

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_tokenizer_t kTable = {sizeof(chassis_tokenizer_t), 0, &info_entry, &encode_entry,
                                                   &decode_entry};
    return id == CHASSIS_TOKENIZER_ID ? &kTable : nullptr;
  }

 private:
  static chassis_status_t* info_entry(chassis_instance* self, chassis_tokenizer_info_t* out) noexcept {
    const Tokenizer& tokenizer = member_of<Tokenizer>(self);
    return guard(tokenizer.host().table(), [&] {
      const TokenizerInfo info = tokenizer.info();
      write_sized<chassis_tokenizer_info_t>(
          {0, info.bos_id, info.eos_id, info.pad_id, info.vocab_size, str(info.fingerprint)}, out);
    });
  }
  static chassis_status_t* encode_entry(chassis_instance* self, chassis_str_t text, int32_t* ids, uint64_t* offsets,
                                        uint64_t capacity, uint64_t* count) noexcept {
    const Tokenizer& tokenizer = member_of<Tokenizer>(self);
    return guard(tokenizer.host().table(), [&] {
      IdSink sink(ids, offsets, capacity);
      tokenizer.encode(text_of(text), sink);
      *count = sink.count();
    });
  }
  static chassis_status_t* decode_entry(chassis_instance* self, const int32_t* ids, uint64_t num_ids, char* text,
                                        uint64_t capacity, uint64_t* count) noexcept {
    const Tokenizer& tokenizer = member_of<Tokenizer>(self);
    return guard(tokenizer.host().table(), [&] {
      ByteSink sink(text, capacity);
      tokenizer.decode({ids, num_ids}, sink);
      *count = sink.count();
    });
  }
};

CHASSIS_SDK_END
